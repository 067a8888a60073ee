// Files that stand in the place of others, and sources over more files than a process may have open.
#include "hasten/files/base/stand_in.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>

#include "files/memory_source.h"
#include "hasten/core/error.h"
#include "hasten/files/folders/manifest.h"
#include "hasten/files/open_source.h"
#include "hasten/files/python/python_file.h"
#include "hasten/files/safetensors/hf_index.h"
#include "hasten/files/safetensors/safetensors_header.h"
#include "hasten/files/safetensors/weight_writer.h"

namespace hasten::files {
namespace {

using files::testing::bytes_of_tensor;
using files::testing::MemorySource;
using files::testing::ScratchFolder;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

constexpr const char* kPointer =
    "version https://git-lfs.github.com/spec/v1\noid "
    "sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e"
    "2393\nsize 12345\n";

void put_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST(StandIn, PointersAndPagesAreKnownByTheirFirstBytes) {
  EXPECT_THAT(stand_in_of(kPointer), HasSubstr("Git LFS"));
  EXPECT_THAT(stand_in_of("\xef\xbb\xbf\n <!DOCTYPE html><html>"), HasSubstr("web page"));
  EXPECT_THAT(stand_in_of("<html lang=en>"), HasSubstr("web page"));
  EXPECT_EQ(stand_in_of("{\"a\": 1}"), "");
  EXPECT_EQ(stand_in_of(""), "");
}

TEST(StandIn, EveryFormOfWeightsIsAnsweredWithWhatTheFileIs) {
  for (const auto& [content, words] :
       {std::pair<std::string, const char*>(kPointer, "Git LFS"), {"<!doctype html>\n<p>Sign in</p>", "web page"}}) {
    for (const char* name :
         {"model.safetensors", "pytorch_model.bin", "model.safetensors.index.json", "manifest.json"}) {
      const ScratchFolder folder;
      put_bytes(folder / name, content);

      EXPECT_THAT([&] { open_source(folder.path()); }, ThrowsMessage<DataError>(HasSubstr(words))) << name;
    }
  }
}

TEST(StandIn, ATextInThePlaceOfWeightsIsNamedAsOne) {
  for (const char* name : {"model.safetensors", "pytorch_model.bin"}) {
    const ScratchFolder folder;
    put_bytes(folder / name, "hello world, this is no model\n");

    EXPECT_THAT([&] { open_source(folder.path()); }, ThrowsMessage<DataError>(HasSubstr("it is a text, not weights")))
        << name;
  }
}

// A model in many files, with an index; the process may have few files open.
class ManyFiles : public ::testing::Test {
 protected:
  static constexpr int kFiles = 80;
  void SetUp() override {
    HfIndex index{.metadata = core::Value::map({{"total_size", 8 * kFiles}})};
    for (int i = 0; i < kFiles; ++i) {
      MemorySource one;
      one.add("w" + std::to_string(i), {2}, {static_cast<float>(i), -1});
      const std::string file = "model-" + std::to_string(i) + ".safetensors";
      write_weights(real_disk(), one, folder_ / file);
      index.weight_map.emplace_back("w" + std::to_string(i), file);
    }
    put_bytes(folder_ / "model.safetensors.index.json", to_json(index));
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit few{48, before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &few);
  }
  void TearDown() override { setrlimit(RLIMIT_NOFILE, &before_); }
  ScratchFolder folder_;
  rlimit before_{};
};

TEST_F(ManyFiles, AreReadWithFewDescriptors) {
  const TensorSourcePtr source = open_source(folder_.path());

  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < kFiles; ++i) {
      const std::string bytes = bytes_of_tensor(*source, "w" + std::to_string(i));
      float value = 0;
      std::memcpy(&value, bytes.data(), sizeof value);
      EXPECT_EQ(value, static_cast<float>(i));
    }
  }
}

TEST_F(ManyFiles, OneThatIsReplacedMeanwhileIsNotMixedIn) {
  const TensorSourcePtr source = open_source(folder_.path());
  MemorySource other;
  other.add("w0", {2}, {7, 7});
  write_weights(real_disk(), other, folder_ / "model-0.safetensors");

  EXPECT_THAT([&] { bytes_of_tensor(*source, "w0"); }, ThrowsMessage<DataError>(HasSubstr("has changed")));
}

class IndexOfFiles : public ::testing::Test {
 protected:
  void put(const std::string& file, const std::vector<std::pair<std::string, float>>& tensors) {
    MemorySource source;
    for (const auto& [name, value] : tensors) source.add(name, {1}, {value});
    write_weights(real_disk(), source, folder_ / file);
  }
  float value(const TensorSource& source, const std::string& name) {
    float value = 0;
    source.read_all(name, &value);
    return value;
  }
  ScratchFolder folder_;
};

TEST_F(IndexOfFiles, DecidesFromWhichFileATensorIsRead) {
  put("a.safetensors", {{"x", 1}, {"stale", 5}});
  put("b.safetensors", {{"x", 2}, {"y", 3}});
  put_bytes(folder_ / "model.safetensors.index.json",
            R"({"weight_map": {"x": "b.safetensors", "y": "b.safetensors"}})");
  put_bytes(folder_ / "other.index.json", R"({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}})");

  const TensorSourcePtr one = open_source(folder_ / "model.safetensors.index.json");
  const TensorSourcePtr other = open_source(folder_ / "other.index.json");

  EXPECT_EQ(value(*one, "x"), 2);
  EXPECT_EQ(value(*other, "x"), 1);
  EXPECT_EQ(value(*other, "y"), 3);
  EXPECT_FALSE(other->contains("stale"));
  ASSERT_EQ(other->remarks().size(), 1U);
  EXPECT_THAT(other->remarks()[0],
              HasSubstr("2 tensors that it does not name there, and that are left out: stale, x."));
  EXPECT_THAT(one->remarks(), IsEmpty());
}

TEST_F(IndexOfFiles, ATensorThatIsNotInItsFileIsNamed) {
  put("a.safetensors", {{"x", 1}});
  put_bytes(folder_ / "model.safetensors.index.json",
            R"({"weight_map": {"x": "a.safetensors", "y": "a.safetensors"}})");

  EXPECT_THAT([&] { open_source(folder_.path()); },
              ThrowsMessage<DataError>(AllOf(HasSubstr("tensor 'y'"), HasSubstr("a.safetensors"))));
}

TEST_F(IndexOfFiles, AFlatMapNamedIndexJsonIsOne) {
  put("a.safetensors", {{"x", 4}});
  put_bytes(folder_ / "index.json", R"({"x": "a.safetensors"})");

  EXPECT_EQ(value(*open_source(folder_.path()), "x"), 4);
  EXPECT_EQ(form_of(folder_.path()), "safetensors");
}

void put_format(const std::string& path, const std::vector<std::pair<std::string, std::string>>& metadata) {
  const auto layout = lay_out_safetensors({{"x", Dtype::kFloat32, {1}}}, metadata);
  put_bytes(path, layout.head + std::string(4, '\0'));
}

TEST_F(IndexOfFiles, WeightsOfOtherFrameworksAreRefusedByName) {
  for (const auto& [format, name] : {std::pair("tf", "TensorFlow"),
                                     {"flax", "Flax"},
                                     {"np", "NumPy"},
                                     {"mlx", "MLX"},
                                     {"odd", "another framework"}}) {
    put_format(folder_ / "model.safetensors", {{"format", format}});
    put_format(folder_ / "shard.safetensors", {{"format", format}});
    put_bytes(folder_ / "other.index.json", R"({"x": "shard.safetensors"})");

    EXPECT_THAT([&] { open_source(folder_.path()); }, ThrowsMessage<DataError>(HasSubstr(name))) << format;
    EXPECT_THAT([&] { open_source(folder_ / "other.index.json"); }, ThrowsMessage<DataError>(HasSubstr(name)));
    EXPECT_THAT([&] { open_source(folder_.path(), {.form = "safetensors"}); },
                ThrowsMessage<DataError>(HasSubstr(name)));
  }
}

TEST_F(IndexOfFiles, MetadataWithoutAFormatNeedsTheFormToBeNamed) {
  put_format(folder_ / "model.safetensors", {{"author", "me"}});
  EXPECT_THAT([&] { open_source(folder_.path()); }, ThrowsMessage<DataError>(HasSubstr("\"format\"")));
  EXPECT_TRUE(open_source(folder_.path(), {.form = "safetensors"})->contains("x"));

  put_format(folder_ / "model.safetensors", {});
  EXPECT_TRUE(open_source(folder_.path())->contains("x"));
}

}  // namespace
}  // namespace hasten::files
