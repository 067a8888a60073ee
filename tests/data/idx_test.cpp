#include "hasten/data/idx.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>

#include "hasten/core/error.h"

namespace hasten::data {
namespace {

using testing::HasSubstr;

// A 2 x 3 matrix of 1…6.
const std::string kMatrix("\0\0\x08\2\0\0\0\2\0\0\0\3\1\2\3\4\5\6", 18);

// Files in a folder of the test's own.
class Idx : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string plain(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary) << bytes;
    return path_;
  }

  std::string gzipped(const std::string& bytes) {
    gzFile file = gzopen(path_.c_str(), "wb");
    gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(file);
    return path_;
  }

  // What read_idx says about the file.
  std::string refusal(const std::string& path) {
    try {
      read_idx(path);
    } catch (const DataError& error) {
      EXPECT_EQ(error.path(), path);
      return error.what();
    }
    return "no error";
  }

 private:
  const std::string folder_ =
      testing::TempDir() + "idx_" + testing::UnitTest::GetInstance()->current_test_info()->name();
  const std::string path_ = folder_ + "/values";
};

TEST_F(Idx, AGzippedFileBecomesATensorOfItsShape) {
  const at::Tensor values = read_idx(gzipped(kMatrix));

  EXPECT_TRUE(values.equal(torch::arange(1, 7, torch::kUInt8).view({2, 3})));
}

TEST_F(Idx, APlainFileIsReadAsItIs) {
  const at::Tensor values = read_idx(plain(kMatrix));

  EXPECT_TRUE(values.equal(torch::arange(1, 7, torch::kUInt8).view({2, 3})));
}

TEST_F(Idx, NoValuesMakeAnEmptyTensor) {
  const at::Tensor values = read_idx(plain(std::string("\0\0\x08\1\0\0\0\0", 8)));

  EXPECT_EQ(values.sizes(), at::IntArrayRef({0}));
}

TEST_F(Idx, AMissingFileIsNamed) {
  EXPECT_THAT(refusal("/no/such/file"), HasSubstr("'/no/such/file' cannot be opened"));
}

TEST_F(Idx, ATruncatedFileSaysWhatItHoldsAndWhatItShould) {
  EXPECT_THAT(refusal(plain(kMatrix.substr(0, 16))),
              HasSubstr("is truncated: its shape [2, 3] needs 6 values, it holds 4"));
}

TEST_F(Idx, ATruncatedArchiveIsRefused) {
  const std::string path = gzipped(kMatrix);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 4);

  EXPECT_THAT(refusal(path), HasSubstr("cannot be unpacked"));
}

TEST_F(Idx, ADamagedArchiveIsRefused) {
  const std::string path = gzipped(kMatrix);
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(14) << "\x7f\x7f";

  EXPECT_THAT(refusal(path), HasSubstr("cannot be unpacked"));
}

TEST_F(Idx, AFileOfAnotherKindIsRefused) {
  EXPECT_THAT(refusal(plain("PK, surely no IDX")), HasSubstr("is no IDX file"));
  EXPECT_THAT(refusal(plain("")), HasSubstr("is no IDX file"));
}

TEST_F(Idx, AnEndWithinTheHeaderIsRefused) {
  EXPECT_THAT(refusal(plain(kMatrix.substr(0, 10))), HasSubstr("ends within its header"));
}

TEST_F(Idx, ValuesOfAnotherTypeAreRefusedByTheirNumber) {
  EXPECT_THAT(refusal(plain(std::string("\0\0\x0d\1\0\0\0\1\0\0\0\0", 12))), HasSubstr("IDX type 13"));
}

TEST_F(Idx, MoreThanTheShapeSaysIsRefused) {
  EXPECT_THAT(refusal(plain(kMatrix + "x")), HasSubstr("holds more than its shape [2, 3] says"));
}

TEST_F(Idx, AHugeShapeOverASmallFileCostsNoMemory) {
  const std::string header("\0\0\x08\2\xff\xff\xff\xff\x7f\xff\xff\xff", 12);

  EXPECT_THAT(refusal(plain(header)), HasSubstr("is truncated"));
}

}  // namespace
}  // namespace hasten::data
