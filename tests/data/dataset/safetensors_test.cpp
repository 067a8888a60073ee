#include "hasten/data/dataset/safetensors.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstring>

#include "data/dataset/raw_values.h"
#include "support/folder.h"

namespace hasten::data {
namespace {

using testing::InFolder;
using testing::words_of;

std::string length_of(uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i));
  return bytes;
}

std::string file_of(const std::string& header, const std::string& values) {
  return length_of(header.size()) + header + values;
}

std::string entry(const std::string& dtype, const std::string& shape, size_t begin, size_t end) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":[)" + std::to_string(begin) + "," +
         std::to_string(end) + "]}";
}

class Safetensors : public InFolder {
 protected:
  SafetensorsFile open(const std::string& header, const std::string& values) const {
    return SafetensorsFile(write("a.safetensors", file_of(header, values)));
  }
  std::string refused(const std::string& header, const std::string& values) const {
    return words_of<DataError>([&] { open(header, values); });
  }
};

TEST_F(Safetensors, GiveTensorsByNameAndTheWritersNotes) {
  const auto file = open(R"({"__metadata__":{"format":"pt"},"b":)" + entry("I64", "[2]", 24, 40) + R"(,"a":)" +
                             entry("F32", "[3,2]", 0, 24) + "}   ",
                         raw_values<float>({0, 1, 2, 3, 4, 5}) + raw_values<int64_t>({-1, 1}));

  EXPECT_EQ(file.tensors().size(), 2u);
  EXPECT_TRUE(torch::equal(file["a"], torch::arange(6, torch::kFloat).reshape({3, 2})));
  EXPECT_TRUE(torch::equal(file["b"], torch::tensor({-1, 1})));
  EXPECT_EQ(file.metadata().at("format"), "pt");
}

TEST_F(Safetensors, HoldEveryTypeThatTorchHas) {
  const std::pair<std::string, at::ScalarType> types[] = {{"BOOL", at::kBool},
                                                          {"U8", at::kByte},
                                                          {"I8", at::kChar},
                                                          {"U16", at::kUInt16},
                                                          {"I16", at::kShort},
                                                          {"U32", at::kUInt32},
                                                          {"I32", at::kInt},
                                                          {"U64", at::kUInt64},
                                                          {"I64", at::kLong},
                                                          {"F16", at::kHalf},
                                                          {"BF16", at::kBFloat16},
                                                          {"F32", at::kFloat},
                                                          {"F64", at::kDouble},
                                                          {"C64", at::kComplexFloat},
                                                          {"F8_E4M3", at::kFloat8_e4m3fn},
                                                          {"F8_E5M2", at::kFloat8_e5m2},
                                                          {"F8_E8M0", at::kFloat8_e8m0fnu}};
  for (const auto& [name, dtype] : types) {
    const size_t bytes = 2 * c10::elementSize(dtype);

    const auto file = open(R"({"a":)" + entry(name, "[2,1]", 0, bytes) + "}", std::string(bytes, '\0'));

    EXPECT_EQ(file["a"].scalar_type(), dtype);
    EXPECT_EQ(file["a"].sizes(), (std::vector<int64_t>{2, 1}));
  }
}

TEST_F(Safetensors, HoldScalarsEmptyTensorsAndNothing) {
  const auto file = open(R"({"none":)" + entry("F32", "[0,4]", 0, 0) + R"(,"one":)" + entry("F32", "[]", 0, 4) + "}",
                         raw_values<float>({7}));

  EXPECT_EQ(file["one"].item<float>(), 7);
  EXPECT_EQ(file["none"].sizes(), (std::vector<int64_t>{0, 4}));
  EXPECT_TRUE(open("{}", "").tensors().empty());
}

TEST_F(Safetensors, AreReadWhereTheReferenceReadsThemToo) {
  const auto more = open(R"({"__metadata__":null,"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"more":1}})", "x");

  EXPECT_EQ(more["a"].item<int>(), 'x');
}

TEST_F(Safetensors, ATensorThatIsNotAlignedIsCopied) {
  const auto file = open(R"({"a":)" + entry("U8", "[1]", 0, 1) + R"(,"b":)" + entry("F32", "[1]", 1, 5) + "}",
                         std::string("x") + raw_values<float>({7}));

  EXPECT_EQ(file["b"].item<float>(), 7);
}

TEST_F(Safetensors, RowsOfChosenNamesAreADatasetThatOutlivesTheFile) {
  auto dataset = open(R"({"x":)" + entry("F32", "[3,1]", 0, 12) + R"(,"y":)" + entry("U8", "[3]", 12, 15) +
                          R"(,"other":)" + entry("U8", "[1]", 15, 16) + "}",
                      raw_values<float>({0, 1, 2}) + "abc" + "z")
                     .rows({"x", "y"});
  const std::vector<size_t> indices{2, 0};

  const auto batch = dataset.get_batch(indices);

  EXPECT_EQ(batch.size(), 2u);
  EXPECT_TRUE(torch::equal(batch.at("x"), torch::tensor({{2.0f}, {0.0f}})));
  EXPECT_EQ(batch.at("y")[0].item<int>(), 'c');
}

TEST_F(Safetensors, AWrongNameGetsTheNearestOne) {
  const auto file = open(R"({"weight":)" + entry("U8", "[1]", 0, 1) + "}", "x");

  EXPECT_EQ(words_of<UsageError>([&] { file["wieght"]; }),
            "[data] '" + path("a.safetensors") +
                "' has no tensor 'wieght', did you mean 'weight'? It has 1: weight. Correct the name.");
}

TEST_F(Safetensors, ATruncatedOrTooLongFileIsRefused) {
  const std::string header = R"({"a":)" + entry("U8", "[4]", 0, 4) + "}";

  EXPECT_NE(refused(header, "123").find("take 4 bytes, but it holds 3 after the header: it is truncated"),
            std::string::npos);
  EXPECT_NE(refused(header, "12345").find("it is too long"), std::string::npos);
  EXPECT_NE(words_of<DataError>([&] { SafetensorsFile(write("short", "1234567")); }).find("has 7 bytes"),
            std::string::npos);
  EXPECT_NE(words_of<DataError>([&] {
              SafetensorsFile(write("cut", file_of(header, "").substr(0, 20)));
            }).find("its header alone takes"),
            std::string::npos);
}

TEST_F(Safetensors, AHeaderOfMoreThanTheFormatsLimitIsRefused) {
  EXPECT_NE(words_of<DataError>([&] {
              SafetensorsFile(write("big", length_of(100'000'001) + "{}"));
            }).find("its header has 100000001 bytes, expected at most 100000000"),
            std::string::npos);
  EXPECT_NE(words_of<DataError>([&] {
              SafetensorsFile(write("huge", length_of(~uint64_t{0}) + "{}"));
            }).find("18446744073709551615 bytes"),
            std::string::npos);
}

TEST_F(Safetensors, HolesOverlapsAndBackwardRangesAreRefused) {
  const auto two = [](const std::string& a, const std::string& b) { return R"({"a":)" + a + R"(,"b":)" + b + "}"; };

  EXPECT_NE(refused(two(entry("U8", "[2]", 0, 2), entry("U8", "[1]", 3, 4)), "1234")
                .find("tensor 'b' lies at [3, 4), expected it from 2 on"),
            std::string::npos);
  EXPECT_NE(refused(two(entry("U8", "[2]", 0, 2), entry("U8", "[3]", 1, 4)), "1234").find("tensor 'b' lies at"),
            std::string::npos);
  EXPECT_NE(refused(R"({"a":)" + entry("U8", "[2]", 1, 3) + "}", "123").find("expected it from 0 on"),
            std::string::npos);
  EXPECT_NE(refused(two(entry("U8", "[4]", 0, 4), entry("U8", "[1]", 4, 3)), "1234").find("tensor 'b' lies at"),
            std::string::npos);
}

TEST_F(Safetensors, OffsetsThatDoNotFitDtypeAndShapeAreRefused) {
  EXPECT_NE(refused(R"({"a":)" + entry("F32", "[2]", 0, 4) + "}", "1234")
                .find("tensor 'a' of float32 [2] lies at [0, 4), which are 4 bytes, expected 8"),
            std::string::npos);
  EXPECT_NE(refused(R"({"a":)" + entry("F32", "[4611686018427387904,4611686018427387904]", 0, 4) + "}", "1234")
                .find("more than a tensor can count"),
            std::string::npos);
}

TEST_F(Safetensors, AnEmptyTensorWhoseOtherSizesFitNoTensorIsRefused) {
  EXPECT_NE(refused(R"({"a":)" + entry("U8", "[0,4611686018427387904,4611686018427387904]", 0, 0) + "}", "")
                .find("more than a tensor can count"),
            std::string::npos);
}

TEST_F(Safetensors, ANameThatStandsTwiceIsRefused) {
  const std::string one = entry("U8", "[1]", 0, 1);

  EXPECT_NE(refused(R"({"a":)" + one + R"(,"a":)" + one + "}", "1").find(R"(names "a" twice)"), std::string::npos);
  EXPECT_NE(refused(R"({"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", "1")
                .find(R"(names "dtype" twice)"),
            std::string::npos);
}

TEST_F(Safetensors, AHeaderThatIsNoneIsRefused) {
  EXPECT_NE(refused("", "").find("does not begin with '{'"), std::string::npos);
  EXPECT_NE(refused(" {}", "").find("does not begin with '{'"), std::string::npos);
  EXPECT_NE(refused("{\"a\":", "").find("no JSON"), std::string::npos);
  EXPECT_NE(refused("{\"\xff\":1}", "").find("no JSON"), std::string::npos);
  EXPECT_NE(refused(R"({"a":1})", "").find("tensor 'a' has no dtype"), std::string::npos);
  EXPECT_NE(refused(R"({"a":)" + entry("F3", "[2]", 0, 1) + "}", "1").find("the dtype \"F3\""), std::string::npos);
  EXPECT_NE(refused(R"({"a":)" + entry("U8", "[-1]", 0, 1) + "}", "1").find("has -1 where"), std::string::npos);
  EXPECT_NE(refused(R"({"a":)" + entry("U8", "[1.0]", 0, 1) + "}", "1").find("has 1.0 where"), std::string::npos);
  EXPECT_NE(refused(R"({"a":)" + entry("U8", "1", 0, 1) + "}", "1").find("the shape 1"), std::string::npos);
  EXPECT_NE(refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", "1").find("data_offsets an array of 1"),
            std::string::npos);
  EXPECT_NE(refused(R"({"__metadata__":{"a":1}})", "").find("'a' that is no text"), std::string::npos);
  EXPECT_NE(refused(R"({"__metadata__":1})", "").find("is no object"), std::string::npos);
}

TEST_F(Safetensors, ADeeplyNestedHeaderIsRefusedWithoutExhaustingTheStack) {
  const std::string deep = std::string(2'000'000, '[') + std::string(2'000'000, ']');

  EXPECT_NE(refused(R"({"a":{"dtype":)" + deep + R"(,"shape":[],"data_offsets":[0,0]}})", "")
                .find("nests more than 100 levels deep"),
            std::string::npos);
}

}  // namespace
}  // namespace hasten::data
