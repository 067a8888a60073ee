#include "hasten/data/dataset/idx.h"

#include <gtest/gtest.h>
#include <torch/data/transforms/lambda.h>
#include <torch/types.h>
#include <unistd.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>

#include "data/dataset/archive.h"
#include "hasten/core/error.h"
#include "hasten/data/dataset/urls.h"
#include "hasten/data/loader/loader.h"

namespace hasten::data {
namespace {

using torch::data::transforms::Stack;

std::string big_endian(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

std::string idx(const std::vector<uint32_t>& shape, const std::string& values) {
  std::string bytes{'\0', '\0', '\x08', static_cast<char>(shape.size())};
  for (const uint32_t size : shape) bytes += big_endian(size);
  return bytes + values;
}

class Idx : public ::testing::Test {
 protected:
  Idx() : folder_(std::filesystem::path(::testing::TempDir()) / text("hasten_idx_", ::getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~Idx() override { std::filesystem::remove_all(folder_); }

  std::string plain(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return folder_ / name;
  }
  std::string gzipped(const std::string& name, const std::string& bytes) const {
    const std::string path = folder_ / name;
    gzFile file = gzopen(path.c_str(), "wb");
    gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(file);
    return path;
  }
  /// Three images of 1 x 2 pixels: 0 51, 102 153, 204 255; labels 7 8 9.
  IdxDataset three() const {
    return IdxDataset(gzipped("images.gz", idx({3, 1, 2}, std::string("\x00\x33\x66\x99\xcc\xff", 6))),
                      plain("labels", idx({3}, "\x07\x08\x09")));
  }
  std::string words(const std::string& path) const {
    try {
      read_idx(path);
    } catch (const DataError& error) {
      EXPECT_EQ(error.path(), path);
      return error.what();
    }
    return "no error";
  }

  std::filesystem::path folder_;
};

TEST_F(Idx, GivesPixelsFromZeroToOneAndLabelsPlainOrGzipped) {
  IdxDataset dataset = three();

  const auto example = dataset.get(1);

  EXPECT_EQ(dataset.size(), 3u);
  EXPECT_TRUE(torch::equal(example.data, torch::tensor({{{102.0f / 255, 153.0f / 255}}})));
  EXPECT_TRUE(torch::equal(example.target, torch::tensor(8)));
}

TEST_F(Idx, ABatchIsWhatItsExamplesStackTo) {
  IdxDataset dataset = three();
  const std::vector<size_t> indices{2, 0, 2};
  std::vector<torch::data::Example<>> one_by_one;
  for (const size_t index : indices) one_by_one.push_back(dataset.get(index));

  const auto expected = Stack<>().apply_batch(one_by_one);
  const auto from_batch = Stack<>().apply_batch(dataset.get_batch(indices));
  const auto stacked = dataset.map(Stack<>()).get_batch(indices);
  const auto through_torch = torch::data::datasets::map(dataset, Stack<>()).get_batch(indices);

  for (const auto& batch : {from_batch, stacked, through_torch}) {
    EXPECT_TRUE(torch::equal(batch.data, expected.data));
    EXPECT_TRUE(torch::equal(batch.target, expected.target));
  }
  EXPECT_EQ(stacked.data.sizes(), (std::vector<int64_t>{3, 1, 1, 2}));
}

TEST_F(Idx, TakesOtherTransformsOfTorchs) {
  auto doubled = three().map(torch::data::transforms::Lambda<torch::data::Example<>>(
      [](torch::data::Example<> example) { return torch::data::Example<>(example.data * 2, example.target); }));
  auto batches = loader<torch::data::samplers::SequentialSampler>(doubled.map(Stack<>()), 2);

  EXPECT_FLOAT_EQ((*batches.begin()).data[1][0][0][0].item<float>(), 204.0f / 255);
}

TEST_F(Idx, AnIndexOutOfRangeIsNamed) {
  IdxDataset dataset = three();

  EXPECT_THROW(dataset.get(3), DataError);
}

TEST_F(Idx, AMissingFileIsNamed) {
  const std::string path = folder_ / "none";

  EXPECT_EQ(words(path), "[data] cannot open '" + path +
                             "': No such file or directory; expected an IDX file, plain or gzipped. Check the path.");
}

TEST_F(Idx, ATruncatedFileIsNamedWithWhatItStatesAndHolds) {
  const std::string whole = idx({3, 1, 2}, "123456");
  const std::string path = plain("short", whole.substr(0, whole.size() - 2));

  EXPECT_EQ(words(path),
            "[data] '" + path + "' states [3 x 1 x 2] values but holds 4: it is truncated. Get the file again.");
  EXPECT_NE(words(plain("header", whole.substr(0, 9))).find("its header alone takes 16"), std::string::npos);
  EXPECT_NE(words(plain("long", whole + "7")).find("holds 7: it is too long"), std::string::npos);
}

TEST_F(Idx, ATruncatedOrDamagedGzipIsNoticed) {
  std::string noise;
  for (unsigned i = 0, x = 1; i < 4000; ++i) noise += static_cast<char>((x = x * 1664525 + 1013904223) >> 24);
  const std::string path = gzipped("a.gz", idx({4000}, noise));
  std::ifstream in(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};

  EXPECT_NE(words(plain("cut.gz", bytes.substr(0, 2000))).find("damaged or truncated"), std::string::npos);
  EXPECT_NE(words(plain("tail.gz", bytes.substr(0, bytes.size() - 6))).find("damaged or truncated"), std::string::npos);
  bytes[1500] = static_cast<char>(bytes[1500] ^ 0x55);
  EXPECT_NE(words(plain("flip.gz", bytes)).find("damaged or truncated"), std::string::npos);
}

TEST_F(Idx, AWrongMagicNumberIsNamed) {
  EXPECT_NE(words(plain("png", "\x89PNG and so on")).find("no IDX file: it begins with 0x89504e47"), std::string::npos);
  EXPECT_NE(words(plain("empty", "")).find("no IDX file"), std::string::npos);
  EXPECT_NE(words(plain("floats", std::string("\0\0\x0d\1", 4))).find("type 13"), std::string::npos);
}

TEST_F(Idx, AHeaderThatStatesMoreThanFitsAnyMemoryIsRefused) {
  const std::string path = plain("huge", idx({0xffffffff, 0xffffffff, 0xffffffff}, "1"));

  EXPECT_NE(words(path).find("it is truncated"), std::string::npos);
}

TEST_F(Idx, CountsThatDoNotBelongTogetherAreNamed) {
  const std::string images = plain("i", idx({2, 1, 1}, "ab")), labels = plain("l", idx({3}, "abc"));

  try {
    IdxDataset(images, labels);
    FAIL() << "accepted";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("2 images"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("3 labels"), std::string::npos) << error.what();
  }
  EXPECT_THROW(IdxDataset(labels, images), DataError) << "files exchanged";
}

TEST_F(Idx, AMissingFashionMnistSaysHowToGetIt) {
  try {
    fashion_mnist(folder_, false);
    FAIL() << "accepted";
  } catch (const DataError& error) {
    const std::string words = error.what();
    EXPECT_NE(words.find("t10k-images-idx3-ubyte"), std::string::npos) << words;
    EXPECT_NE(words.find("apt-get install dataset-fashion-mnist"), std::string::npos) << words;
    EXPECT_NE(words.find("--data"), std::string::npos) << words;
  }
}

TEST_F(Idx, FashionMnistIsReadFromItsFolder) {
  for (const std::string set : {"train", "t10k"}) {
    gzipped(set + "-images-idx3-ubyte.gz", idx({1, 1, 1}, set.substr(0, 1)));
    plain(set + "-labels-idx1-ubyte", idx({1}, "\x05"));
  }

  EXPECT_EQ(fashion_mnist(folder_, true).data().images.item<int>(), 't');
  EXPECT_EQ(fashion_mnist(folder_, false).data().labels.item<int>(), 5);
}

TEST_F(Idx, OtherContentsThanFashionMnistsAreRefusedAndLeaveNothing) {
  gzipped("train-images-idx3-ubyte.gz", idx({1, 1, 1}, "x"));
  const std::string into = (folder_ / "into").string();

  try {
    fetch_fashion_mnist(into, folder_.string());
    FAIL() << "accepted";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("expected c59f468a2f672dc8"), std::string::npos) << error.what();
  }
  EXPECT_FALSE(std::filesystem::exists(into + "/train-images-idx3-ubyte.gz"));
}

TEST_F(Idx, WhatTheFolderHasOfFashionMnistIsNotFetchedAgain) {
  for (const std::string set : {"train", "t10k"}) {
    gzipped(set + "-images-idx3-ubyte.gz", idx({1, 1, 1}, "x"));
    gzipped(set + "-labels-idx1-ubyte.gz", idx({1}, "\x05"));
  }

  EXPECT_EQ(fetch_fashion_mnist(folder_.string(), "http://127.0.0.1:9/nowhere"), folder_);
}

TEST_F(Idx, AnAddressOfFastaisNamesTheFolderThatIsThere) {
  std::filesystem::create_directories(folder_ / "imagenette2-160");

  EXPECT_EQ(fetch_archive(urls::kImagenette160, {.into = folder_}), folder_ / "imagenette2-160");
}

static_assert(is_thread_safe<IdxDataset>::value && is_thread_safe<StackedIdxDataset>::value);

}  // namespace
}  // namespace hasten::data
