// Random damage to files of every form: a reader gives a value or a DataError, and touches nothing outside the file.
// HASTEN_TEST_SCALE multiplies the rounds; the address sanitizer sees reads beyond the end.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>

#include "files/memory_source.h"
#include "hasten/core/env.h"
#include "hasten/core/error.h"
#include "hasten/files/folders/dcp_folder.h"
#include "hasten/files/folders/manifest.h"
#include "hasten/files/folders/open_source.h"
#include "hasten/files/python/python_file.h"
#include "hasten/files/safetensors/hf_index.h"
#include "hasten/files/safetensors/safetensors_header.h"

namespace hasten::files {
namespace {

namespace fs = std::filesystem;
using files::testing::ScratchFolder;

std::string whole_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string damaged(std::string bytes, std::mt19937& random) {
  if (bytes.empty()) return bytes;
  const size_t changes = 1 + random() % 4;
  for (size_t i = 0; i < changes && !bytes.empty(); ++i) {
    const size_t at = random() % bytes.size();
    switch (random() % 5) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
        break;
      case 1:
        bytes[at] = static_cast<char>(random());
        break;
      case 2:
        bytes.resize(at);
        break;
      case 3:
        bytes.insert(at, bytes.substr(random() % bytes.size(), random() % 32));
        break;
      default:
        bytes.replace(at, std::min<size_t>(4, bytes.size() - at),
                      std::string("\xff\xff\xff\x7f", std::min<size_t>(4, bytes.size() - at)));
    }
  }
  return bytes;
}

/// Reads all tensors of a source, in an exact buffer, so that a sanitizer notices a byte too many.
void read_all(const TensorSource& source) {
  for (const std::string& name : source.names()) {
    if (bytes_of(source.info(name)) < (64 << 20)) files::testing::bytes_of_tensor(source, name);
  }
}

/// Runs `read` on damaged copies of `seed`; anything but success, DataError or UsageError is a failure.
void fuzz(const std::string& seed, unsigned rounds, const std::function<void(const std::string&)>& read) {
  const auto scale =
      static_cast<unsigned>(Environment::current().integer("HASTEN_TEST_SCALE", 1, 1'000'000).value_or(1));
  for (unsigned round = 0; round < rounds * scale; ++round) {
    std::mt19937 random(round * 7919 + static_cast<unsigned>(seed.size()));
    const std::string bytes = damaged(seed, random);
    try {
      read(bytes);
    } catch (const DataError&) {
    } catch (const UsageError&) {
    } catch (const std::exception& error) {
      ADD_FAILURE() << "round " << round << ": " << error.what();
    }
  }
}

void fuzz_python(const std::string& seed, unsigned rounds) {
  fuzz(seed, rounds, [](const std::string& bytes) {
    // A copy of exactly this size, and no terminating zero behind it.
    const auto copy = std::make_shared<std::vector<char>>(bytes.begin(), bytes.end());
    const PythonFile file = PythonFile::parse({copy->data(), copy->size()}, copy, "fuzzed");
    for (const auto& source : {python_source(file.value(), "fuzzed")}) {
      for (const std::string& name : source->names()) {
        if (bytes_of(source->info(name)) > (1 << 20)) continue;
      }
    }
  });
}

std::string golden_folder() {
  return std::string(HASTEN_SOURCE_DIR) + "/tests/golden/";
}

TEST(Fuzz, PythonFilesOfEveryKind) {
  unsigned seeds = 0;
  for (const auto& entry : fs::directory_iterator(golden_folder() + "python_files")) {
    if (!entry.is_regular_file() || entry.file_size() > 60'000) continue;
    fuzz_python(whole_file(entry.path()), 12);
    ++seeds;
  }
  EXPECT_GT(seeds, 50u);
}

TEST(Fuzz, ValuesOfTensorsStayInsideTheirFile) {
  const ScratchFolder folder;
  for (const char* seed :
       {"python_files/object_views.pt", "python_files/zip_deflated.pt", "python_files/legacy_views.pt"}) {
    fuzz(whole_file(golden_folder() + seed), 60, [&](const std::string& bytes) {
      std::ofstream(folder / "f.pt", std::ios::binary) << bytes;
      read_all(*open_python_source(folder / "f.pt"));
    });
  }
}

TEST(Fuzz, SafetensorsAndIndexes) {
  const ScratchFolder folder;
  fuzz(whole_file(golden_folder() + "checkpoints/mixed_safetensors_100/model-00003-of-00003.safetensors"), 400,
       [&](const std::string& bytes) {
         std::ofstream(folder / "f.safetensors", std::ios::binary) << bytes;
         read_all(*open_source(folder / "f.safetensors"));
       });
  fuzz(whole_file(golden_folder() + "checkpoints/mixed_safetensors_100/model.safetensors.index.json"), 400,
       [](const std::string& bytes) { parse_hf_index(bytes, "i"); });
}

TEST(Fuzz, DcpMetadataAndDeepSpeedFiles) {
  const ScratchFolder folder;
  fs::copy(golden_folder() + "python_files/dcp_adamw_w2/pytorch_model_fsdp_0", folder / "dcp");
  fuzz(whole_file(folder / "dcp/.metadata"), 250, [&](const std::string& bytes) {
    std::ofstream(folder / "dcp/.metadata", std::ios::binary) << bytes;
    read_all(*open_source(folder / "dcp"));
  });
  fs::copy(golden_folder() + "zero_checkpoints/zero2_bf16_w2", folder / "zero", fs::copy_options::recursive);
  const std::string file = folder / "zero/global_step5/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt";
  fuzz(whole_file(file), 120, [&](const std::string& bytes) {
    std::ofstream(file, std::ios::binary) << bytes;
    read_all(*open_source(folder / "zero"));
  });
}

TEST(Fuzz, Manifests) {
  Manifest manifest{.writer = "test"};
  manifest.files = {{"a.safetensors", 10'000, {}}, {"b.safetensors", 10'000, {}}};
  manifest.tensors = {{.info = {"w", Dtype::kFloat32, {4, 2}},
                       .pieces = {{0, {{0, 0}, {2, 2}}, {}, 4096}, {1, {{2, 0}, {2, 2}}, {}, 4096}}},
                      {.info = {"v", Dtype::kInt64, {3}}, .pieces = {{0, {{0}, {3}}, {}, 5000}}},
                      {.info = {"u", Dtype::kInt64, {3}}, .tied_to = "v"}};
  fuzz(to_json(manifest), 2000, [](const std::string& bytes) { parse_manifest(bytes, "m"); });
}

}  // namespace
}  // namespace hasten::files
