// The manifest, the source over hasten's own form, its verification and repair, and the plan of reads.
#include "hasten/files/folders/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "files/memory_source.h"
#include "hasten/core/error.h"
#include "hasten/files/disk/disk.h"
#include "hasten/files/folders/load_plan.h"
#include "hasten/files/safetensors/safetensors_header.h"

namespace hasten::files {
namespace {

namespace fs = std::filesystem;
using files::testing::ScratchFolder;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::string numbers(size_t count) {
  std::string bytes;
  for (size_t i = 0; i < count; ++i) bytes += static_cast<char>(i * 7 + 1);
  return bytes;
}

/// Writes tensor "t" of uint8 [6, 4] in three pieces over two files, and "tied" to it; returns the manifest.
Manifest write_state(const std::string& folder) {
  Manifest manifest{.writer = "test",
                    .save_id = "ab",
                    .time = 12.5,
                    .world_size = 2,
                    .strategy = "zero1",
                    .hosts = {"h"},
                    .step = 30,
                    .iteration = 3};
  manifest.parts["random"] = core::Value::map({{"seed", 5}});
  const std::string whole = numbers(24);
  ManifestTensor tensor{.info = {"t", Dtype::kUInt8, {6, 4}}};
  const std::vector<std::vector<Box>> boxes{{{{0, 0}, {3, 4}}}, {{{3, 0}, {3, 1}}, {{3, 1}, {3, 3}}}};
  for (size_t f = 0; f < boxes.size(); ++f) {
    std::vector<TensorInfo> infos;
    for (size_t i = 0; i < boxes[f].size(); ++i)
      infos.push_back({i == 0 ? "t" : "t.part1", Dtype::kUInt8, boxes[f][i].size});
    const SafetensorsLayout layout = lay_out_safetensors(infos, {});
    std::string bytes = layout.head;
    bytes.resize(layout.file_bytes);
    for (size_t i = 0; i < boxes[f].size(); ++i) {
      std::string part(static_cast<size_t>(numel_of(boxes[f][i])), '\0');
      copy_common(whole.data(), whole_box(tensor.info.shape), part.data(), boxes[f][i], 1);
      bytes.replace(layout.offsets[i], part.size(), part);
      tensor.pieces.push_back({f, boxes[f][i], core::xxh3_128(part), layout.offsets[i]});
    }
    manifest.files.push_back({text("f", f, ".safetensors"), bytes.size(), core::xxh3_128(layout.head)});
    write_file(real_disk(), folder + "/" + manifest.files.back().name, bytes);
  }
  manifest.tensors = {tensor, {.info = {"tied", Dtype::kUInt8, {6, 4}}, .tied_to = "t"}};
  write_manifest(real_disk(), folder, manifest);
  return manifest;
}

TEST(Manifest, ReadsBackAsItWasWritten) {
  const ScratchFolder folder;
  const Manifest written = write_state(folder.path());

  const Manifest read = read_manifest(folder.path());

  EXPECT_EQ(to_json(read), to_json(written));
  EXPECT_EQ(read.step, 30);
  EXPECT_EQ(read.parts.at("random").at("seed").as_int(), 5);
  EXPECT_EQ(read.find("t")->pieces[1].box, (Box{{3, 0}, {3, 1}}));
  EXPECT_EQ(read.find("tied")->tied_to, "t");
  EXPECT_EQ(read.find("none"), nullptr);
}

TEST(Manifest, EqualPartsOneAFileAreWrittenAsASplit) {
  Manifest manifest;
  manifest.files = {{"a", 5000, {}}, {"b", 5000, {}}};
  manifest.tensors = {{.info = {"t", Dtype::kFloat32, {2, 4}},
                       .pieces = {{0, {{0, 0}, {2, 2}}, {}, 4096}, {1, {{0, 2}, {2, 2}}, {}, 4096}}}};

  const std::string json = to_json(manifest);

  EXPECT_THAT(json, HasSubstr("\"split\":[1,2]"));
  EXPECT_EQ(parse_manifest(json, "m").tensors[0].pieces[1].box, (Box{{0, 2}, {2, 2}}));
}

TEST(Manifest, OtherFormsAndGapsAreRefused) {
  Manifest manifest;
  manifest.files = {{"a", 5000, {}}};
  manifest.tensors = {{.info = {"t", Dtype::kFloat32, {2}}, .pieces = {{0, {{0}, {1}}, {}, 4096}}}};
  const auto refused = [](const std::string& json, const char* why) {
    EXPECT_THAT([&] { parse_manifest(json, "m"); }, ThrowsMessage<DataError>(HasSubstr(why)));
  };
  refused(to_json(manifest), "have 1 elements, expected 2");
  manifest.tensors[0].pieces.push_back(manifest.tensors[0].pieces[0]);
  refused(to_json(manifest), "overlap");
  manifest.tensors[0].pieces[1].box.offset = {2};
  refused(to_json(manifest), "outside it");
  manifest.tensors[0].pieces[1].box.offset = {1};
  manifest.tensors[0].pieces[1].position = 4998;
  refused(to_json(manifest), "beyond the end");
  manifest.tensors.clear();
  manifest.files[0].name = "../a";
  refused(to_json(manifest), "not inside its folder");
  manifest.files.clear();
  manifest.version = 2;
  refused(to_json(manifest), "newer hasten");
  refused("{}", "format");
  refused("[", "manifest");
}

TEST(HastenFolder, AnyBoxIsReadFromAnyPieces) {
  const ScratchFolder folder;
  write_state(folder.path());

  const TensorSourcePtr source = open_hasten_folder(folder.path());

  EXPECT_EQ(files::testing::bytes_of_tensor(*source, "tied"), numbers(24));
  std::string column(6, '\0'), expected(6, '\0');
  source->read("t", {{0, 2}, {6, 1}}, column.data());
  copy_common(numbers(24).data(), whole_box(std::vector<int64_t>{6, 4}), expected.data(), {{0, 2}, {6, 1}}, 1);
  EXPECT_EQ(column, expected);
}

TEST(HastenFolder, EachDamagedByteIsFound) {
  const ScratchFolder folder;
  const Manifest manifest = write_state(folder.path());
  EXPECT_TRUE(verify_folder(folder.path()).errors.empty());
  EXPECT_EQ(verify_folder(folder.path()).bytes, 24u);

  const std::string path = folder / "f1.safetensors";
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(manifest.tensors[0].pieces[2].position));
  file.put('X');
  file.close();
  EXPECT_THAT(verify_folder(folder.path()).errors,
              ::testing::ElementsAre(HasSubstr("f1.safetensors: tensor 't' [3:6, 1:4]")));
  EXPECT_TRUE(verify_folder(folder.path(), true).errors.empty());

  fs::resize_file(path, fs::file_size(path) - 1);
  EXPECT_THAT(verify_folder(folder.path(), true).errors, ::testing::ElementsAre(HasSubstr("expected")));
  EXPECT_THAT([&] { open_hasten_folder(folder.path()); }, ThrowsMessage<DataError>(HasSubstr("f1.safetensors")));
  fs::remove(path);
  EXPECT_THAT([&] { check_files(manifest, folder.path()); }, ThrowsMessage<DataError>(HasSubstr("is missing")));
}

TEST(HastenFolder, ALostManifestIsBuiltFromHeaders) {
  const ScratchFolder folder;
  const auto shard = [&](const std::string& name, int64_t row, const std::string& bytes) {
    const SafetensorsLayout layout = lay_out_safetensors(
        {{"t", Dtype::kUInt8, {1, 4}}}, {{"DCP_SHARDING_INFO", text(R"({"t":{"saved_offsets":[)", row, ",0]}}")}});
    write_file(real_disk(), folder / name, layout.head + bytes);
  };
  shard("model-00001-of-00002.safetensors", 0, "abcd");
  shard("model-00002-of-00002.safetensors", 1, "efgh");

  const Manifest manifest = manifest_of_headers(folder.path());
  write_manifest(real_disk(), folder.path(), manifest);

  EXPECT_EQ(manifest.find("t")->kind, "model");
  EXPECT_TRUE(verify_folder(folder.path()).errors.empty());
  EXPECT_EQ(files::testing::bytes_of_tensor(*open_hasten_folder(folder.path()), "t"), "abcdefgh");
  fs::remove(folder / "model-00001-of-00002.safetensors");
  EXPECT_THROW(manifest_of_headers(folder.path()), DataError);
  EXPECT_THROW(manifest_of_headers(folder / "none"), UsageError);
}

TEST(LoadPlan, NeighbouringRangesBecomeOneRead) {
  Manifest manifest;
  manifest.files = {{"a", 1 << 20, {}}};
  manifest.tensors = {{.info = {"x", Dtype::kUInt8, {100}}, .pieces = {{0, {{0}, {100}}, {}, 4096}}},
                      {.info = {"y", Dtype::kUInt8, {100}}, .pieces = {{0, {{0}, {100}}, {}, 4300}}},
                      {.info = {"z", Dtype::kUInt8, {100}}, .pieces = {{0, {{0}, {100}}, {}, 500'000}}}};

  const LoadPlan plan = plan_load(manifest, {{"z", {{10}, {5}}}, {"x", {{0}, {100}}}, {"y", {{0}, {1}}}});

  ASSERT_EQ(plan.reads.size(), 2u);
  EXPECT_EQ(plan.reads[0].begin, 4096u);
  EXPECT_EQ(plan.reads[0].end, 4301u);
  EXPECT_TRUE(plan.reads[0].copies[0].whole_piece);
  EXPECT_FALSE(plan.reads[1].copies[0].whole_piece);
  EXPECT_EQ(plan.bytes, 205u + 5u);
  EXPECT_THAT([&] { plan_load(manifest, {{"xx", {}}}); }, ThrowsMessage<UsageError>(HasSubstr("did you mean 'x'?")));
  EXPECT_THROW(plan_load(manifest, {{"x", {{1}, {100}}}}), UsageError);
}

/// Cuts a box in two at random places, `depth` times over.
void cut_up(const Box& box, std::mt19937& random, int depth, std::vector<Box>& parts) {
  const size_t axis = box.size.empty() ? 0 : random() % box.size.size();
  if (depth == 0 || box.size.empty() || box.size[axis] < 2) {
    parts.push_back(box);
    return;
  }
  Box low = box, high = box;
  low.size[axis] = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(box.size[axis] - 1));
  high.offset[axis] += low.size[axis];
  high.size[axis] -= low.size[axis];
  cut_up(low, random, depth - 1, parts);
  cut_up(high, random, depth - 1, parts);
}

TEST(LoadPlan, AnyPiecesFillAnyBoxes) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    std::vector<int64_t> shape(random() % 4);
    for (int64_t& size : shape) size = 1 + static_cast<int64_t>(random() % 6);
    const size_t numel = static_cast<size_t>(numel_of(shape));
    const std::string whole = numbers(numel * 2);
    ManifestTensor tensor{.info = {"t", Dtype::kInt16, shape}};
    std::vector<Box> pieces, boxes;
    cut_up(whole_box(shape), random, 3, pieces);
    cut_up(whole_box(shape), random, 3, boxes);
    std::string file;
    for (const Box& box : pieces) {
      std::string part(static_cast<size_t>(numel_of(box)) * 2, '\0');
      copy_common(whole.data(), whole_box(shape), part.data(), box, 2);
      tensor.pieces.push_back({0, box, {}, file.size()});
      file += part + std::string(random() % 3, '#');
    }
    Manifest manifest;
    manifest.files = {{"f", file.size(), {}}};
    manifest.tensors = {tensor};
    std::vector<WantedBox> want;
    std::vector<std::string> got;
    std::vector<void*> targets;
    for (const Box& box : boxes) {
      want.push_back({"t", box});
      got.emplace_back(static_cast<size_t>(numel_of(box)) * 2, '?');
    }
    for (std::string& one : got) targets.push_back(one.data());
    for (const LoadRead& read : plan_load(manifest, want, random() % 8, 16).reads) {
      copy_read(manifest, want, read, file.data() + read.begin, targets);
    }
    std::string back(whole.size(), '?');
    for (size_t i = 0; i < boxes.size(); ++i) copy_common(got[i].data(), boxes[i], back.data(), whole_box(shape), 2);
    ASSERT_EQ(back, whole) << "seed " << seed;
  }
}

}  // namespace
}  // namespace hasten::files
