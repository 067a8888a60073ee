#include "hasten/data/dataset/npy.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstring>

#include "data/dataset/raw_values.h"
#include "hasten/data/dataset/tensor_dataset.h"
#include "support/folder.h"

namespace hasten::data {
namespace {

using testing::InFolder;
using testing::words_of;

/// A file as numpy.save writes it, or with another header.
std::string npy(const std::string& header, const std::string& values, char major = 1) {
  const size_t begin = major == 1 ? 10 : 12;
  std::string padded = header;
  while ((begin + padded.size() + 1) % 64 != 0) padded += ' ';
  padded += '\n';
  std::string bytes{'\x93', 'N', 'U', 'M', 'P', 'Y', major, '\0'};
  for (size_t i = 0; i < begin - 8; ++i) bytes += static_cast<char>(padded.size() >> (8 * i));
  return bytes + padded + values;
}

std::string header(const std::string& descr, const std::string& shape, bool fortran_order = false) {
  return "{'descr': '" + descr + "', 'fortran_order': " + (fortran_order ? "True" : "False") + ", 'shape': " + shape +
         ", }";
}

class Npy : public InFolder {
 protected:
  at::Tensor read(const std::string& bytes) const { return map_npy(write("a.npy", bytes)); }
  std::string refused(const std::string& bytes) const {
    return words_of<DataError>([&] { read(bytes); });
  }
};

TEST_F(Npy, GivesTheArrayWithItsShape) {
  const auto array = read(npy(header("<f4", "(2, 3)"), raw_values<float>({0, 1, 2, 3, 4, 5})));

  EXPECT_TRUE(torch::equal(array, torch::arange(6, torch::kFloat).reshape({2, 3})));
  EXPECT_EQ(read(npy(header("<f4", "()"), raw_values<float>({7}))).item<float>(), 7);
  EXPECT_EQ(read(npy(header("<f4", "(0, 3)"), "")).sizes(), (std::vector<int64_t>{0, 3}));
}

TEST_F(Npy, GivesTheArrayOfAllVersions) {
  for (const char major : {1, 2, 3}) {
    EXPECT_TRUE(torch::equal(read(npy(header("<i2", "(2,)"), raw_values<int16_t>({-1, 300}), major)),
                             torch::tensor({-1, 300}, torch::kShort)));
  }
}

TEST_F(Npy, GivesEveryTypeThatTorchHas) {
  const std::pair<std::string, at::ScalarType> types[] = {
      {"|b1", at::kBool},         {"|u1", at::kByte},          {"|i1", at::kChar},  {"<u2", at::kUInt16},
      {"<i2", at::kShort},        {"<u4", at::kUInt32},        {"<i4", at::kInt},   {"<u8", at::kUInt64},
      {"<i8", at::kLong},         {"<f2", at::kHalf},          {"<f4", at::kFloat}, {"<f8", at::kDouble},
      {"<c8", at::kComplexFloat}, {"<c16", at::kComplexDouble}};
  for (const auto& [descr, dtype] : types) {
    const auto expected = torch::tensor({1.0, 0.0, 1.0}).to(dtype);
    const std::string bytes(static_cast<const char*>(expected.const_data_ptr()), expected.nbytes());

    const auto array = read(npy(header(descr, "(3,)"), bytes));

    EXPECT_EQ(array.scalar_type(), dtype);
    EXPECT_EQ(std::memcmp(array.const_data_ptr(), bytes.data(), bytes.size()), 0) << descr;
  }
}

TEST_F(Npy, FortranOrderBecomesStrides) {
  const auto array = read(npy(header("<f4", "(2, 3)", true), raw_values<float>({0, 3, 1, 4, 2, 5})));

  EXPECT_TRUE(torch::equal(array, torch::arange(6, torch::kFloat).reshape({2, 3})));
  EXPECT_EQ(array.strides(), (std::vector<int64_t>{1, 2}));
}

TEST_F(Npy, TheOtherByteOrderIsSwapped) {
  EXPECT_TRUE(torch::equal(read(npy(header(">i4", "(2,)"), std::string("\0\0\1\2\xff\xff\xff\xff", 8))),
                           torch::tensor({258, -1}, torch::kInt)));
  EXPECT_TRUE(torch::equal(read(npy(header(">f8", "(1,)"), std::string("\x3f\xf0\0\0\0\0\0\0", 8))),
                           torch::tensor({1.0}, torch::kDouble)));
  const auto complex = read(npy(header(">c8", "(1,)"), std::string("\x3f\x80\0\0\x40\0\0\0", 8)));
  EXPECT_EQ(complex.item<c10::complex<float>>(), c10::complex<float>(1, 2)) << "each half for itself";
  EXPECT_EQ(read(npy(header(">i2", "(2, 1)", true), std::string("\0\1\0\2", 4)))[1].item<int>(), 2);
}

TEST_F(Npy, AnArrayThatIsNotAlignedIsCopied) {
  std::string bytes = npy(header("<f4", "(1,)"), raw_values<float>({5}));
  bytes[8] = static_cast<char>(bytes[8] - 1);
  bytes.erase(bytes.find('\n'), 1);

  EXPECT_EQ(read(bytes).item<float>(), 5);
}

TEST_F(Npy, WritingToTheTensorLeavesTheFileAlone) {
  const std::string file = write("a.npy", npy(header("<f4", "(1,)"), raw_values<float>({5})));
  map_npy(file).fill_(6);

  EXPECT_EQ(map_npy(file).item<float>(), 5);
}

TEST_F(Npy, ServesADatasetThatOutlivesAllElse) {
  TensorDataset dataset(read(npy(header("<f4", "(3, 1)"), raw_values<float>({0, 1, 2}))));
  const std::vector<size_t> indices{2, 1};

  EXPECT_TRUE(torch::equal(dataset.get_batch(indices), torch::tensor({{2.0f}, {1.0f}})));
}

TEST_F(Npy, HeadersAsOtherWritersMakeThemAreRead) {
  const std::string value = raw_values<float>({5, 6});
  for (const char* header : {R"({"shape":(2,),"fortran_order":False,"descr":"<f4"})",
                             "{'descr': '<f4', 'fortran_order': False, 'shape': (2L,)}",
                             "{ 'fortran_order' : False,\n'descr':'<f4','shape' : ( 2 , 1 ) }"}) {
    EXPECT_EQ(read(npy(header, value)).numel(), 2) << header;
  }
}

TEST_F(Npy, ATruncatedFileIsNamedWithWhatItStatesAndHolds) {
  const std::string whole = npy(header("<f4", "(2, 3)"), std::string(24, '\0'));

  EXPECT_EQ(refused(whole.substr(0, whole.size() - 1)),
            "[data] '" + path("a.npy") +
                "' states [2 x 3] values of type '<f4', 24 bytes, but holds 23: it is truncated or damaged. "
                "Get the "
                "file again.");
  EXPECT_NE(refused(whole.substr(0, 100)).find("its header alone takes 128"), std::string::npos);
  EXPECT_NE(refused(whole.substr(0, 7)).find("is no .npy file (7 bytes)"), std::string::npos);
  EXPECT_NE(refused("").find("is no .npy file (0 bytes)"), std::string::npos);
}

TEST_F(Npy, ASizeThatFitsNoMemoryIsRefused) {
  const std::string huge = "(4611686018427387904, 4611686018427387904)";

  EXPECT_NE(refused(npy(header("<f8", huge), "12345678")).find("it is truncated"), std::string::npos);
  EXPECT_NE(refused(npy(header("<f8", "(0, 4611686018427387904, 4611686018427387904)"), "")).find("damaged"),
            std::string::npos);
  EXPECT_NE(refused(npy(header("<f8", "(99999999999999999999,)"), "12345678")).find("no tuple of sizes"),
            std::string::npos);
}

TEST_F(Npy, TypesThatTorchHasNotAreNamed) {
  for (const char* descr : {"|O", "<U5", "|S3", "<M8[ns]", "<f16", "|V2", "<f3", "", "f4"}) {
    EXPECT_NE(refused(npy(header(descr, "(1,)"), std::string(16, '\0'))).find("type '" + std::string(descr) + "'"),
              std::string::npos)
        << descr;
  }
  EXPECT_NE(refused(npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", "1234")).find("a record"),
            std::string::npos);
}

TEST_F(Npy, ADamagedHeaderIsRefused) {
  const std::string rest = "'fortran_order': False, 'shape': (1,)}";
  for (const std::string& header :
       {std::string("[]"), std::string("{'descr': '<f4'}"), "{'descr': '<f4', 'descr': '<f4', " + rest,
        "{'other': '<f4', 'descr': '<f4', " + rest, "{'descr': '<f4, " + rest, "{'descr': '<f4', " + rest + "}",
        std::string("{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}"),
        std::string("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}"),
        std::string("{'descr': '<f4', 'fortran_order': False, 'shape': (1"), std::string()}) {
    EXPECT_NE(refused(npy(header, "1234")).find("has a header with"), std::string::npos) << header;
  }
}

TEST_F(Npy, OtherVersionsAndOtherFilesAreRefused) {
  EXPECT_NE(refused(npy(header("<f4", "(1,)"), "1234", 4)).find("version 4.0"), std::string::npos);
  EXPECT_NE(refused("PK\x03\x04 an archive of arrays").find("is no .npy file"), std::string::npos);
}

TEST_F(Npy, ABoolThatIsNeitherZeroNorOneIsRefused) {
  EXPECT_NE(refused(npy(header("|b1", "(2,)"), "\x01\x07")).find("value 1 is 7"), std::string::npos);
}

}  // namespace
}  // namespace hasten::data
