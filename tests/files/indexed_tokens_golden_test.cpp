// Megatron's indexed datasets, written and read.
#include "hasten/files/folders/indexed_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "hasten/core/base64.h"
#include "hasten/core/error.h"
#include "support/folder.h"
#include "support/golden.h"

namespace hasten::files {
namespace {

using nlohmann::json;
using hasten::testing::GoldenCase;
using hasten::testing::GoldenTopic;
using ::testing::HasSubstr;

class Indexed : public hasten::testing::InFolder {};

const std::map<std::string, Dtype> kNames = {
    {"uint8", Dtype::kUInt8}, {"int8", Dtype::kInt8},     {"int16", Dtype::kInt16},     {"int32", Dtype::kInt32},
    {"int64", Dtype::kInt64}, {"uint16", Dtype::kUInt16}, {"float32", Dtype::kFloat32}, {"float64", Dtype::kFloat64}};

template <class T>
std::string packed_as(const json& sequence) {
  std::string out;
  for (const auto& token : sequence) {
    const T value = token.get<T>();
    out.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  return out;
}

template <class T>
json unpacked_as(const char* tokens, int64_t length) {
  json out = json::array();
  for (int64_t i = 0; i < length; ++i) {
    T value;
    std::memcpy(&value, tokens + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    out.push_back(value);
  }
  return out;
}

template <class Visit>
auto by_dtype(Dtype dtype, const Visit& visit) {
  switch (dtype) {
    case Dtype::kUInt8:
      return visit(uint8_t());
    case Dtype::kInt8:
      return visit(int8_t());
    case Dtype::kInt16:
      return visit(int16_t());
    case Dtype::kUInt16:
      return visit(uint16_t());
    case Dtype::kInt64:
      return visit(int64_t());
    case Dtype::kFloat32:
      return visit(float());
    case Dtype::kFloat64:
      return visit(double());
    default:
      return visit(int32_t());
  }
}

std::string bytes_of(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

json written_and_read(const GoldenCase& golden, const std::string& prefix) {
  const Dtype dtype = kNames.at(golden.input.at("dtype"));
  const json modes = golden.input.at("modes");
  IndexedTokensWriter writer(real_disk(), prefix, dtype);
  size_t number = 0;
  for (const auto& document : golden.input.at("documents")) {
    for (const auto& sequence : document) {
      const std::string bytes = by_dtype(dtype, [&](auto of) { return packed_as<decltype(of)>(sequence); });
      std::optional<int8_t> mode;
      if (!modes.is_null()) mode = modes.at(number).get<int8_t>();
      writer.add(bytes.data(), static_cast<int64_t>(sequence.size()), mode);
      ++number;
    }
    writer.end_document();
  }
  writer.finish();
  const IndexedTokens read(prefix);
  json sequences = json::array();
  for (int64_t i = 0; i < read.size(); ++i) {
    const int64_t length = read.lengths()[static_cast<size_t>(i)];
    sequences.push_back(by_dtype(dtype, [&](auto of) { return unpacked_as<decltype(of)>(read.tokens(i), length); }));
  }
  return {{"idx", base64(bytes_of(prefix + ".idx"))},
          {"bin", base64(bytes_of(prefix + ".bin"))},
          {"sequences", sequences},
          {"document_indices", read.documents()},
          {"sequence_lengths", read.lengths()}};
}

TEST_F(Indexed, TokensAreMegatronsBytes) {
  GoldenTopic topic("model_parallel", [](const GoldenCase& golden) { return golden.family == "idx"; });

  topic.for_each(
      [&](const GoldenCase& golden) { topic.judge(golden, [&] { return written_and_read(golden, path("tokens")); }); });

  topic.finish();
}

// A good pair, whose index is then changed.
std::string words_of(const std::string& prefix, const std::function<void(std::string&)>& change) {
  IndexedTokensWriter writer(real_disk(), prefix, Dtype::kInt32);
  const int32_t tokens[] = {1, 2, 3};
  writer.add(tokens, 3);
  writer.end_document();
  writer.finish();
  std::string bytes = bytes_of(prefix + ".idx");
  change(bytes);
  write_file(real_disk(), prefix + ".idx", bytes);
  try {
    const IndexedTokens read(prefix);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

TEST_F(Indexed, BrokenFilesAreRefusedWithThePlace) {
  const std::string prefix = path("tokens");
  EXPECT_THAT(words_of(prefix, [](auto& bytes) { bytes[0] = 'X'; }), HasSubstr("does not begin with MMIDIDX"));
  EXPECT_THAT(words_of(prefix, [](auto& bytes) { bytes[9] = 2; }), HasSubstr("has version 2 at byte 9"));
  EXPECT_THAT(words_of(prefix, [](auto& bytes) { bytes[17] = 9; }), HasSubstr("dtype number 9"));
  EXPECT_THAT(words_of(prefix, [](auto& bytes) { bytes.resize(40); }), HasSubstr("is cut short: at byte 38"));
  EXPECT_THAT(words_of(prefix, [](auto& bytes) { bytes[25] = 127; }), HasSubstr("is cut short"));
  EXPECT_THAT(words_of(prefix, [](auto& bytes) { bytes[34] = 4; }), HasSubstr("sequence 0 of 4 tokens at byte 0"));
  EXPECT_THAT(words_of(prefix, [](auto& bytes) { bytes += "ab"; }), HasSubstr("goes on behind its end"));
  EXPECT_EQ(words_of(prefix, [](auto&) {}), "");
}

TEST_F(Indexed, ModesAreOfAllSequencesOrNone) {
  IndexedTokensWriter writer(real_disk(), path("tokens"), Dtype::kUInt8);
  writer.add("a", 1, int8_t{2});
  EXPECT_THROW(writer.add("b", 1), UsageError);
  writer.add("b", 1, int8_t{3});
  writer.end_document();
  writer.finish();

  EXPECT_THAT(IndexedTokens(path("tokens")).modes(), ::testing::ElementsAre(2, 3));
}

}  // namespace
}  // namespace hasten::files
