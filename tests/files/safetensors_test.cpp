// Headers of safetensors files, sources over them, shards with saved offsets, indexes, and the split of a state_dict.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "files/folders/weight_search.h"
#include "files/memory_source.h"
#include "hasten/core/error.h"
#include "hasten/files/disk/mapped_file.h"
#include "hasten/files/safetensors/hf_index.h"
#include "hasten/files/safetensors/safetensors_header.h"
#include "hasten/files/safetensors/safetensors_source.h"
#include "hasten/files/safetensors/shard_split.h"

namespace hasten::files {
namespace {

using files::testing::ScratchFolder;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::string file_of(const std::string& header, size_t body) {
  std::string bytes;
  for (size_t i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i));
  return bytes + header + std::string(body, 'v');
}

void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

void expect_refused(const std::string& header, size_t body, const std::string& why) {
  const std::string bytes = file_of(header, body);
  EXPECT_THAT([&] { parse_safetensors_header("f", bytes, bytes.size()); }, ThrowsMessage<DataError>(HasSubstr(why)))
      << header;
}

TEST(SafetensorsHeader, WhatIsWrittenReadsBack) {
  const std::vector<TensorInfo> tensors{{"b", Dtype::kFloat32, {2, 3}},
                                        {"a", Dtype::kInt64, {}},
                                        {"c", Dtype::kBool, {0, 4}},
                                        {"f4", Dtype::kFloat4E2M1FnX2, {3}}};
  const SafetensorsLayout layout = lay_out_safetensors(tensors, {{"format", "pt"}});
  std::string bytes = layout.head;
  bytes.resize(layout.file_bytes);

  const SafetensorsHeader header = parse_safetensors_header("f", bytes, bytes.size());

  EXPECT_EQ(header.body_offset % 4096, 0u);
  EXPECT_EQ(*header.find_metadata("format"), "pt");
  ASSERT_EQ(header.entries.size(), 4u);
  EXPECT_EQ(header.entries[0].info.name, "a");  // eight bytes an element come first
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto entry = std::find_if(header.entries.begin(), header.entries.end(),
                                    [&](const auto& one) { return one.info.name == tensors[i].name; });
    EXPECT_EQ(entry->info.shape, tensors[i].shape);
    EXPECT_EQ(entry->info.dtype, tensors[i].dtype);
    EXPECT_EQ(header.body_offset + entry->begin, layout.offsets[i]);
  }
  EXPECT_THAT(layout.head, HasSubstr("\"f4\":{\"dtype\":\"F4\",\"shape\":[6]"));
}

TEST(SafetensorsHeader, DamagedFilesAreRefusedWithTheReason) {
  expect_refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12, "expected it from 0 on");
  expect_refused(
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
      8, "lies at [4, 8)");
  expect_refused(
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2,
      "twice");
  expect_refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7, "truncated");
  expect_refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 9, "too long");
  expect_refused(R"({"a":{"dtype":"F6_E2M3","shape":[2],"data_offsets":[0,8]}})", 8, "which torch has not");
  expect_refused(R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", 2, "last size must be even");
  expect_refused(R"({"a":{"dtype":"F32","shape":[9223372036854775807,9223372036854775807],"data_offsets":[0,8]}})", 8,
                 "more than a tensor can count");
  expect_refused(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,8]}})", 8, "whole number");
  expect_refused("[]", 0, "'{'");
  expect_refused("{" + std::string(1000, '['), 0, "");
  const std::string huge("\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10);
  EXPECT_THROW(parse_safetensors_header("f", huge, huge.size()), DataError);
  EXPECT_THROW(parse_safetensors_header("f", "1234", 4), DataError);
}

TEST(SafetensorsHeader, Complex128AndTwoOfANameAreRefused) {
  EXPECT_THROW(lay_out_safetensors({{"c", Dtype::kComplex128, {1}}}, {}), UsageError);
  EXPECT_THROW(lay_out_safetensors({{"c", Dtype::kFloat32, {1}}, {"c", Dtype::kFloat32, {1}}}, {}), UsageError);
}

/// Writes one file with the given parts and where they lie in their tensors.
void write_shard(const std::string& path, const std::vector<TensorInfo>& parts, const std::string& sharding_info,
                 char fill) {
  const SafetensorsLayout layout =
      lay_out_safetensors(parts, {{"DCP_SHARDING_INFO", sharding_info}, {"DCP_VERSION", "1.0"}});
  std::string bytes = layout.head;
  bytes.resize(layout.file_bytes, fill);
  write(path, bytes);
}

TEST(SafetensorsSource, PartsWithSavedOffsetsAreOneTensor) {
  const ScratchFolder folder;
  write_shard(folder / "a.safetensors", {{"t", Dtype::kUInt8, {2, 3}}}, R"({"t":{"saved_offsets":[0,0]}})", 'a');
  write_shard(folder / "b.safetensors", {{"t", Dtype::kUInt8, {1, 3}}}, R"({"t":{"saved_offsets":[2,0]}})", 'b');

  const TensorSourcePtr source =
      open_sharded_safetensors(folder.path(), {folder / "a.safetensors", folder / "b.safetensors"});

  EXPECT_TRUE(has_sharding_info(folder / "a.safetensors"));
  EXPECT_EQ(source->info("t").shape, (std::vector<int64_t>{3, 3}));
  EXPECT_EQ(files::testing::bytes_of_tensor(*source, "t"), "aaaaaabbb");
  std::string column(3, '\0');
  source->read("t", {{0, 1}, {3, 1}}, column.data());
  EXPECT_EQ(column, "aab");
  EXPECT_FALSE(source->location("t").has_value());
  EXPECT_THROW(open_sharded_safetensors("x", {folder / "b.safetensors"}), DataError);  // rows 0 and 1 are missing
}

TEST(SafetensorsSource, UnknownNamesAreAnsweredWithTheNearest) {
  const ScratchFolder folder;
  write(folder / "m.safetensors", file_of(R"({"weight":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2));

  const TensorSourcePtr source = open_safetensors(folder / "m.safetensors");

  EXPECT_THAT([&] { source->info("wieght"); }, ThrowsMessage<UsageError>(HasSubstr("did you mean 'weight'?")));
  char out[4];
  EXPECT_THROW(source->read("weight", {{1}, {2}}, out), UsageError);
  const auto location = source->location("weight");
  ASSERT_TRUE(location.has_value());
  EXPECT_EQ(MappedFile::open(location->path)->bytes().substr(location->offset, 2), "vv");
}

TEST(HfIndex, FlatMapsAndRealIndexesAreRead) {
  EXPECT_EQ(parse_hf_index(R"({"a": "x.safetensors"})", "i").weight_map.size(), 1u);
  const HfIndex index = parse_hf_index(R"({"metadata": {"total_size": 8}, "weight_map": {"b": "2", "a": "1"}})", "i");
  EXPECT_EQ(index.files(), (std::vector<std::string>{"1", "2"}));
  EXPECT_EQ(to_json(index),
            "{\n  \"metadata\": {\n    \"total_size\": 8\n  },\n  \"weight_map\": {\n    \"a\": \"1\",\n    \"b\": "
            "\"2\"\n  }\n}\n");
  for (const char* bad :
       {"[]", R"({"weight_map": 3})", R"({"a": "../x"})", R"({"a": "/etc/passwd"})", R"({"a": 3})", "{a"}) {
    EXPECT_THROW(parse_hf_index(bad, "i"), DataError) << bad;
  }
}

TEST(WeightSearch, SafetensorsComesFirstAndTheRestIsNamed) {
  const ScratchFolder folder;
  EXPECT_THROW(find_weights(folder / "missing"), UsageError);
  EXPECT_THROW(find_weights(folder.path()), UsageError);
  write(folder / "pytorch_model.bin", "x");
  EXPECT_EQ(find_weights(folder.path()).files, std::vector<std::string>{folder / "pytorch_model.bin"});
  write(folder / "model.safetensors", "x");
  const WeightFiles both = find_weights(folder.path());
  EXPECT_EQ(both.files, std::vector<std::string>{folder / "model.safetensors"});
  EXPECT_THAT(both.remarks, ::testing::ElementsAre(HasSubstr("safetensors is read")));
  write(folder / "a.index.json", R"({"a": "gone.safetensors"})");
  EXPECT_THAT([&] { find_weights(folder / "a.index.json"); }, ThrowsMessage<DataError>(HasSubstr("gone.safetensors")));
}

TEST(ShardSplit, SizesAndPatterns) {
  EXPECT_EQ(parse_shard_size("5GB"), 5'000'000'000u);
  EXPECT_EQ(parse_shard_size(" 1.5 kb "), 1500u);
  EXPECT_EQ(parse_shard_size("123"), 123u);
  EXPECT_EQ(parse_shard_size("-1MB"), 0u);
  for (const char* bad : {"", "GB", "5GiB", "infGB", "0x10MB", "nanKB", "5 G B"})
    EXPECT_THROW(parse_shard_size(bad), UsageError) << bad;
  EXPECT_TRUE(is_shard_of("model-00001-of-00003.safetensors", "model{suffix}.safetensors"));
  EXPECT_TRUE(is_shard_of("model.safetensors", "model{suffix}.safetensors"));
  EXPECT_TRUE(is_shard_of("model.safetensors.index.json", "model{suffix}.safetensors"));
  EXPECT_FALSE(is_shard_of("model_1.safetensors", "model{suffix}.safetensors"));
  EXPECT_FALSE(is_shard_of("model-00009-of-00099.txt", "model{suffix}.safetensors"));
}

}  // namespace
}  // namespace hasten::files
