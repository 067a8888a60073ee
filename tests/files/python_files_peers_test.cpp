// What hasten writes, read by Python: torch.load with weights_only, mmap and meta; safetensors;
// load_checkpoint_in_model; DCP's HuggingFaceStorageReader; unzip.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "cli/command.h"
#include "files/hub_server.h"
#include "files/memory_source.h"
#include "hasten/core/env.h"
#include "hasten/core/hash.h"
#include "hasten/files/hub/hub.h"
#include "hasten/files/python/python_file.h"
#include "hasten/files/safetensors/safetensors_header.h"
#include "hasten/files/safetensors/weight_writer.h"
#include "support/python.h"

namespace hasten::files {
namespace {

namespace fs = std::filesystem;
using files::testing::MemorySource;
using files::testing::ScratchFolder;

std::vector<float> counted(size_t n) {
  std::vector<float> values(n);
  std::iota(values.begin(), values.end(), 0.0f);
  return values;
}

PythonValue matrix(const std::vector<float>& values, std::vector<int64_t> shape) {
  auto owner = std::make_shared<const std::vector<float>>(values);
  return tensor_value(Dtype::kFloat32, std::move(shape), owner->data(), owner);
}

PythonValue all_values() {
  const PythonValue tensor = matrix(counted(24), {4, 6});
  PythonTensor view = tensor.as_tensor(), parameter = tensor.as_tensor();
  view.shape = {6, 4};
  view.stride = {1, 6};
  parameter.parameter = parameter.requires_grad = true;
  PythonValue dtypes = PythonValue::dict();
  for (const Dtype dtype : {Dtype::kBool, Dtype::kUInt8, Dtype::kInt8, Dtype::kUInt16, Dtype::kInt16, Dtype::kUInt32,
                            Dtype::kInt32, Dtype::kUInt64, Dtype::kInt64, Dtype::kFloat16, Dtype::kBFloat16,
                            Dtype::kFloat32, Dtype::kFloat64, Dtype::kComplex64, Dtype::kComplex128,
                            Dtype::kFloat8E4M3Fn, Dtype::kFloat8E5M2, Dtype::kFloat8E4M3Fnuz, Dtype::kFloat8E5M2Fnuz}) {
    static const std::string bytes = [] {
      std::string list(64, '\0');
      const unsigned char head[] = {57, 56, 65, 64};
      std::memcpy(list.data(), head, sizeof head);
      return list;
    }();
    const std::string eights = std::string("\x38\x40", 2) + std::string(62, '\0');
    auto owner = std::make_shared<const std::string>(element_bytes(dtype) == 1 ? eights : bytes);
    if (dtype == Dtype::kBool) owner = std::make_shared<const std::string>(64, '\1');
    dtypes.set(PythonValue(std::string(torch_name(dtype))), tensor_value(dtype, {2}, owner->data(), owner));
  }
  const PythonValue numbers = PythonValue::list(
      {PythonValue(), PythonValue(true), PythonValue(false), PythonValue(0), PythonValue(255), PythonValue(256),
       PythonValue(65535), PythonValue(65536), PythonValue(-1), PythonValue(int64_t{1} << 31),
       PythonValue(-(int64_t{1} << 31)), PythonValue::big_int("9223372036854775808"),
       PythonValue::unsigned_int(UINT64_MAX), PythonValue::big_int("1000000000000000000000000000000"), PythonValue(1.5),
       PythonValue(INFINITY)});
  return PythonValue::dict(
      {{PythonValue("tensor"), tensor},
       {PythonValue("view"), view},
       {PythonValue("parameter"), parameter},
       {PythonValue("dtypes"), dtypes},
       {PythonValue("numbers"), numbers},
       {PythonValue("texts"),
        PythonValue::tuple({PythonValue(""), PythonValue("äöü €"), PythonValue::bytes(std::string("\0\xff raw", 6))})},
       {PythonValue("size"), PythonValue::size({2, 0, 7})},
       {PythonValue("dtype"), PythonValue::dtype(Dtype::kBFloat16)}});
}

/// Writes the weights in pieces as two ranks hold them: a ragged flat split of the matrix, the bias whole on one.
void write_shards(const std::string& folder) {
  fs::create_directories(folder);
  const std::vector<float> whole = counted(24);
  const std::vector<int64_t> shape{4, 6};
  size_t number = 0;
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 14}, {14, 24}}) {
    for (const Box& box : boxes_of_range(shape, begin, end)) {
      std::vector<TensorInfo> infos{{"0.weight", Dtype::kFloat32, box.size}};
      std::string offsets = text("\"0.weight\":{\"saved_offsets\":[", box.offset[0], ",", box.offset[1], "]}");
      if (++number == 1) {
        infos.push_back({"0.bias", Dtype::kFloat32, {4}});
        offsets += ",\"0.bias\":{\"saved_offsets\":[0]}";
      }
      const SafetensorsLayout layout = lay_out_safetensors(
          infos, {{"format", "pt"}, {"DCP_SHARDING_INFO", "{" + offsets + "}"}, {"DCP_VERSION", "1.0"}});
      std::string bytes = layout.head;
      bytes.resize(layout.file_bytes);
      copy_common(whole.data(), whole_box(shape), bytes.data() + layout.offsets[0], box, 4);
      if (number == 1) std::memcpy(bytes.data() + layout.offsets[1], whole.data(), 16);
      std::ofstream(folder + text("/model-0000", number, "-of-00008.safetensors"), std::ios::binary) << bytes;
    }
  }
}

TEST(PythonFilesPeers, EachFileThatIsWrittenLoadsInPython) {
  const auto why = hasten::testing::why_without_python("HASTEN_PEERS_PYTHON", {"torch", "safetensors", "accelerate"});
  if (!why.empty()) GTEST_SKIP() << why;
  const std::string python = *Environment::current().text("HASTEN_PEERS_PYTHON");
  const ScratchFolder folder;
  save_python_file(real_disk(), folder / "values.pt", all_values());
  PythonValue state = PythonValue::ordered_dict(
      {{PythonValue("0.weight"), matrix(counted(24), {4, 6})}, {PythonValue("0.bias"), matrix(counted(4), {4})}});
  PythonValue version = PythonValue::dict({{PythonValue("version"), PythonValue(1)}});
  state.set_attributes(
      PythonValue::dict({{PythonValue("_metadata"), PythonValue::ordered_dict({{PythonValue(""), version}})}}));
  save_python_file(real_disk(), folder / "state.pt", state);
  MemorySource source;
  source.add("0.weight", {4, 6}, counted(24));
  source.add("0.bias", {4}, counted(4));
  write_weights(real_disk(), source, folder / "model");
  write_weights(real_disk(), source, folder / "sharded", {.max_shard_bytes = 100});
  write_weights(real_disk(), source, folder / "bin", {.safe_serialization = false});
  write_shards(folder / "shards");

  const auto result =
      hasten::test::run_command({python, HASTEN_SOURCE_DIR "/tests/files/peers/check_files.py", folder.path()});

  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  if (fs::exists("/usr/bin/unzip")) {
    const auto unzip = hasten::test::run_command({"/usr/bin/unzip", "-t", folder / "values.pt"});
    EXPECT_EQ(unzip.exit_code, 0) << unzip.out << unzip.err;
  }
}

TEST(HubPeers, HuggingfaceHubAndHastenShareOneCache) {
  const auto why = hasten::testing::why_without_python("HASTEN_PEERS_PYTHON", {"huggingface_hub"});
  if (!why.empty()) GTEST_SKIP() << why;
  const std::string python = *Environment::current().text("HASTEN_PEERS_PYTHON");
  const ScratchFolder folder;
  const std::string commit(40, 'c');
  const std::map<std::string, std::string> files{{"ours.bin", std::string(50'000, 'o')},
                                                 {"sub/theirs.bin", std::string(70'000, 't')}};
  files::testing::HubServer server([&](const files::testing::HubRequest& request) -> files::testing::HubAnswer {
    const std::string prefix = "/org/name/resolve/";
    const size_t name = request.path.find('/', prefix.size());
    const auto file = request.path.starts_with(prefix) && name != std::string::npos
                          ? files.find(request.path.substr(name + 1))
                          : files.end();
    if (file == files.end())
      return {.status = 404, .headers = {{"X-Error-Code", "EntryNotFound"}, {"X-Repo-Commit", commit}}};
    return {.headers = {{"X-Repo-Commit", commit}, {"ETag", '"' + core::sha256_hex(file->second) + '"'}},
            .body = file->second};
  });
  const std::string cache = folder / "hub";
  const auto get = [&](const std::string& file, bool offline) {
    return hub::download("org/name", file, {.cache_dir = cache, .local_files_only = offline, .endpoint = server.url()},
                         Environment::of({{"HF_HOME", folder / "home"}}));
  };

  const std::string ours = get("ours.bin", false);
  const auto result =
      hasten::test::run_command({"/usr/bin/env", "HF_HOME=" + (folder / "home"), "HF_HUB_DISABLE_XET=1", python,
                                 HASTEN_SOURCE_DIR "/tests/files/peers/hub_cache.py", server.url(), cache});
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const std::string theirs = get("sub/theirs.bin", true);

  EXPECT_THAT(result.out, ::testing::HasSubstr("ours " + ours + "\n"));
  EXPECT_THAT(result.out, ::testing::HasSubstr("again " + ours + "\n"));
  EXPECT_THAT(result.out, ::testing::HasSubstr("theirs " + theirs + "\n"));
  EXPECT_THAT(result.out, ::testing::HasSubstr("files ['ours.bin', 'theirs.bin']"));
  EXPECT_EQ(fs::file_size(theirs), 70'000u);
  const auto requests = server.requests();
  EXPECT_EQ(std::count_if(requests.begin(), requests.end(), [](const auto& each) { return each.method == "GET"; }), 2);
}

}  // namespace
}  // namespace hasten::files
