#include "hasten/files/folders/catalog.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "files/memory_source.h"
#include "hasten/core/error.h"
#include "hasten/files/folders/offload_folder.h"
#include "hasten/files/safetensors/weight_writer.h"
#include "support/folder.h"

namespace hasten::files {
namespace {

class CatalogTest : public hasten::testing::InFolder {
 protected:
  // Two tensors in a folder of .dat files.
  std::string folder() const {
    const float weight[6] = {0, 1, 2, 3, 4, 5};
    const int64_t count = 7;
    const std::vector<TensorInfo> infos{{"t.h.1.w", Dtype::kFloat32, {2, 3}}, {"t.h.10.n", Dtype::kInt64, {}}};
    write_offload_weight(path("folder"), infos[0], weight);
    write_offload_weight(path("folder"), infos[1], &count);
    merge_offload_index(path("folder"), infos);
    return path("folder");
  }
};

TEST_F(CatalogTest, ReadsAnOffloadFolderInTheIndexsOrder) {
  const Catalog catalog = Catalog::open(folder());
  float part[2] = {};
  int64_t count = 0;

  catalog.read("t.h.1.w", {{1, 1}, {1, 2}}, part);
  catalog.read_all("t.h.10.n", &count);

  EXPECT_EQ(catalog.names(), (std::vector<std::string>{"t.h.1.w", "t.h.10.n"}));
  EXPECT_EQ(part[0], 4);
  EXPECT_EQ(part[1], 5);
  EXPECT_EQ(count, 7);
  EXPECT_EQ(catalog.location("t.h.1.w")->path, path("folder/t.h.1.w.dat"));
}

TEST_F(CatalogTest, PartsPrefixesMergesAndNewNames) {
  const Catalog catalog = Catalog::open(folder());

  EXPECT_EQ(catalog.under({"t.h.1"}).names(), std::vector<std::string>{"t.h.1.w"});
  EXPECT_EQ(catalog.under({"t.h.10", "t.h.1", "t.h.10"}).names(), (std::vector<std::string>{"t.h.10.n", "t.h.1.w"}));
  EXPECT_EQ(catalog.with_prefix("t.h.").names(), (std::vector<std::string>{"1.w", "10.n"}));
  EXPECT_EQ(catalog.with_prefix("t.").info("h.1.w").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(catalog.under({"t.h.10"}).merged_with(catalog).names(), (std::vector<std::string>{"t.h.10.n", "t.h.1.w"}));
  EXPECT_EQ(catalog.renamed([](const std::string& name) { return "x." + name; }).names().front(), "x.t.h.1.w");
  EXPECT_NE(hasten::testing::words_of<UsageError>([&] {
              catalog.renamed([](const auto&) { return "same"; });
            }).find("get the name 'same'"),
            std::string::npos);
  EXPECT_NE(hasten::testing::words_of<UsageError>([&] { catalog.info("t.h.1.v"); }).find("did you mean 't.h.1.w'?"),
            std::string::npos);
}

TEST_F(CatalogTest, ATruncatedOrMissingFileIsNamed) {
  const Catalog catalog = Catalog::open(folder());
  std::filesystem::resize_file(path("folder/t.h.1.w.dat"), 20);
  std::filesystem::remove(path("folder/t.h.10.n.dat"));
  int64_t count = 0;

  EXPECT_NE(hasten::testing::words_of<DataError>([&] {
              catalog.location("t.h.1.w");
            }).find("has 20 bytes, the index says 24"),
            std::string::npos);
  EXPECT_NE(hasten::testing::words_of<DataError>([&] { catalog.read_all("t.h.10.n", &count); }).find("t.h.10.n.dat"),
            std::string::npos);
}

TEST_F(CatalogTest, AnEntryOfASafetensorsFileIsReadInItsDtypeAndNullIsNoFile) {
  testing::MemorySource source;
  source.add("w", {2}, {1.5F, -2.0F});
  write_weights(real_disk(), source, path("w.safetensors"));
  const float plain = 7;
  write_offload_weight(path("folder"), {"plain", Dtype::kFloat32, {}}, &plain);
  const auto index = core::Value::parse_json(R"({
      "half": {"safetensors_file": ")" + path("w.safetensors") +
                                                 R"(", "weight_name": "w", "dtype": "float16"},
      "same": {"safetensors_file": ")" + path("w.safetensors") +
                                                 R"(", "weight_name": "w"},
      "plain": {"safetensors_file": null, "dtype": "float32", "shape": []}})",
                                             "index");

  const auto opened = open_offload_index(index, path("folder"));
  std::vector<uint16_t> half(2);
  float value = 0;
  opened->read_all("half", half.data());
  opened->read_all("plain", &value);

  EXPECT_EQ(opened->info("half").dtype, Dtype::kFloat16);
  EXPECT_EQ(half, (std::vector<uint16_t>{0x3E00, 0xC000}));
  EXPECT_FALSE(opened->location("half").has_value()) << "the file's bytes are of another dtype";
  EXPECT_EQ(opened->info("same").dtype, Dtype::kFloat32);
  EXPECT_TRUE(opened->location("same").has_value());
  EXPECT_EQ(value, 7);
}

TEST_F(CatalogTest, AnEntrysDtypeThatIsNoneIsRefused) {
  testing::MemorySource source;
  source.add("w", {1}, {1});
  write_weights(real_disk(), source, path("w.safetensors"));
  const auto index = core::Value::parse_json(
      R"({"w": {"safetensors_file": ")" + path("w.safetensors") + R"(", "dtype": "float15"}})", "index");

  EXPECT_NE(hasten::testing::words_of<DataError>([&] {
              open_offload_index(index, path("folder"));
            }).find("asks for the dtype \"float15\" of a tensor of float32"),
            std::string::npos);
}

TEST_F(CatalogTest, AFolderWithoutIndexIsNoOffloadFolder) {
  const float value = 1;
  write_offload_weight(path("folder"), {"a", Dtype::kFloat32, {}}, &value);

  EXPECT_FALSE(is_offload_folder(path("folder")));
  EXPECT_THROW(open_offload_folder(path("folder")), DataError);
}

TEST_F(CatalogTest, AnIndexIsMergedIntoTheOneThatIsThere) {
  const float value = 1;
  folder();

  write_offload_weight(path("folder"), {"t.h.1.w", Dtype::kFloat32, {}}, &value);
  merge_offload_index(path("folder"), {{"t.h.1.w", Dtype::kFloat32, {}}});

  const auto source = open_offload_folder(path("folder"));
  EXPECT_EQ(source->names(), (std::vector<std::string>{"t.h.1.w", "t.h.10.n"}));
  EXPECT_TRUE(source->info("t.h.1.w").shape.empty());
}

}  // namespace
}  // namespace hasten::files
