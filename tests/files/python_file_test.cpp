// Python's files: what is written reads back, and what is hostile is refused without harm.
#include "hasten/files/python/python_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "files/memory_source.h"
#include "files/python/pickle_reader.h"
#include "files/python/pickle_writer.h"
#include "files/python/zip_reader.h"
#include "files/python/zip_writer.h"
#include "files/python_json.h"
#include "hasten/core/error.h"

namespace hasten::files {
namespace {

using files::testing::ScratchFolder;
using files::testing::ToJson;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Kind = PythonValue::Kind;

PythonValue floats(std::vector<float> values) {
  auto owner = std::make_shared<const std::vector<float>>(std::move(values));
  return tensor_value(Dtype::kFloat32, {static_cast<int64_t>(owner->size())}, owner->data(), owner);
}

/// A random tree of the values that both directions know.
PythonValue random_value(std::mt19937& random, int depth) {
  switch (random() % (depth > 0 ? 16u : 9u)) {
    case 0:
      return {};
    case 1:
      return PythonValue(static_cast<bool>(random() % 2));
    case 2:
      return PythonValue(static_cast<int64_t>(uint64_t{random()} << 32 | random()) >> (random() % 62));
    case 3:
      return PythonValue::big_int("-" + std::string(1 + random() % 40, static_cast<char>('1' + random() % 9)));
    case 4:
      return PythonValue(std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 100) - 50));
    case 5:
      return PythonValue(random() % 2 == 0 ? "text äöü €" : "");
    case 6:
      return PythonValue::bytes(std::string("\0\xff\x80 raw", 8));
    case 7:
      return PythonValue::dtype(static_cast<Dtype>(random() % 15));
    case 8:
      return PythonValue::complex(1.5, -0.25);
    case 9:
      return floats({1, 2.5f, static_cast<float>(random())});
    case 10:
      return PythonValue::size({2, 0, 7});
    case 11:
      return PythonValue::device("cpu");
    default:
      break;
  }
  PythonValue::Items items;
  PythonValue::Pairs pairs;
  const size_t count = random() % 5;
  for (size_t i = 0; i < count; ++i) {
    items.push_back(random_value(random, depth - 1));
    pairs.emplace_back(i % 2 == 0 ? PythonValue(text("key", i)) : PythonValue(static_cast<int64_t>(i)), items.back());
  }
  switch (random() % 4) {
    case 0:
      return PythonValue::list(std::move(items));
    case 1:
      return PythonValue::tuple(std::move(items));
    case 2:
      return PythonValue::dict(std::move(pairs));
    default:
      return PythonValue::ordered_dict(std::move(pairs));
  }
}

TEST(PythonFile, RandomTreesReadBackAsTheyWereWritten) {
  const ScratchFolder folder;
  for (unsigned seed = 0; seed < 150; ++seed) {
    std::mt19937 random(seed);
    const PythonValue value = PythonValue::dict({{PythonValue("root"), random_value(random, 5)}});
    save_python_file(real_disk(), folder / "f.pt", value);

    ASSERT_EQ(ToJson()(PythonFile::open(folder / "f.pt").value()), ToJson()(value)) << "seed " << seed;
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);  // no temporary file is left
}

TEST(PythonFile, TensorsOfOneStorageShareItInTheFile) {
  const ScratchFolder folder;
  const PythonValue whole = floats({0, 1, 2, 3, 4, 5});
  PythonTensor column = whole.as_tensor();
  column.shape = {3};
  column.stride = {2};
  column.offset = 1;
  write_python_file(real_disk(), folder / "f.pt", PythonValue::list({whole, column}));

  const PythonFile file = PythonFile::open(folder / "f.pt");

  EXPECT_EQ(file.value()[size_t{0}].as_tensor().storage, file.value()[1].as_tensor().storage);
  EXPECT_EQ(files::testing::values_json(file.value()[1].as_tensor()), nlohmann::json({1.0, 3.0, 5.0}));
  EXPECT_EQ(file.value()[1].as_tensor().storage->offset % 64, 0u);
}

TEST(PythonFile, StateDictsKeepTheirMetadataAndLoseTheirPrefix) {
  const ScratchFolder folder;
  PythonValue state = PythonValue::ordered_dict(
      {{PythonValue("module._orig_mod.w"), floats({1})}, {PythonValue("module._orig_mod.b"), floats({2})}});
  state.set_attributes(
      PythonValue::dict({{PythonValue("_metadata"),
                          PythonValue::ordered_dict(
                              {{PythonValue(""), PythonValue::dict({{PythonValue("version"), PythonValue(2)}})}})}}));
  write_python_file(real_disk(), folder / "f.pt",
                    PythonValue::dict({{PythonValue("epoch"), PythonValue(3)}, {PythonValue("model"), state}}));

  const TensorSourcePtr source = open_python_source(folder / "f.pt");
  const PythonFile file = PythonFile::open(folder / "f.pt");

  EXPECT_EQ(source->names(), (std::vector<std::string>{"w", "b"}));
  EXPECT_THAT(source->remarks(), ::testing::ElementsAre(HasSubstr("'model'"), HasSubstr("'module._orig_mod.'")));
  EXPECT_EQ(file["model"].attributes()->at("_metadata").at("").at("version").as_int(), 2);
  EXPECT_THAT([&] { file["modle"]; }, ThrowsMessage<DataError>(HasSubstr("did you mean 'model'?")));
}

TEST(PythonFile, ObjectsCyclesAndDepthAreRefusedInWriting) {
  EXPECT_THROW(write_pickle(PythonValue::object({.module = "m", .name = "C"})), UsageError);
  EXPECT_THROW(write_pickle(PythonValue::list({PythonValue::cycle()})), UsageError);
  PythonValue deep;
  for (int i = 0; i < 100'000; ++i) deep = PythonValue::list({deep});
  EXPECT_THROW(write_pickle(deep), UsageError);
}

PythonValue read(std::string_view pickle) {
  return read_pickle(pickle, "p").value;
}

TEST(Pickle, IntegersOfEverySizeAreExact) {
  for (const char* digits :
       {"0", "-1", "255", "256", "65535", "65536", "2147483647", "2147483648", "-2147483648", "-2147483649",
        "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809",
        "18446744073709551615", "123456789012345678901234567890", "-340282366920938463463374607431768211456"}) {
    EXPECT_EQ(read(write_pickle(PythonValue::big_int(digits)).bytes).int_text(), digits);
  }
  EXPECT_EQ(PythonValue::unsigned_int(UINT64_MAX).as_uint(), UINT64_MAX);
  EXPECT_EQ(read("L-12345678901234567890L\n.").int_text(), "-12345678901234567890");
  EXPECT_EQ(read("I01\n.").as_bool(), true);
  EXPECT_EQ(read("F-1.5\n.").as_double(), -1.5);
  EXPECT_EQ(read("S'a\\x41\\n'\n.").as_string(), "aA\n");
  EXPECT_EQ(read("Va\\u20acb\n.").as_string(), "a€b");
}

TEST(Pickle, NothingIsExecutedAndTheNamesAreTold) {
  const Pickle pickle = read_pickle("cos\nsystem\n(S'rm -rf /'\ntR.", "p");

  EXPECT_TRUE(pickle.value.is_object());
  EXPECT_EQ(pickle.value.as_object().qualified(), "os.system");
  EXPECT_EQ(pickle.value.as_object().args[size_t{0}].as_string(), "rm -rf /");
  EXPECT_EQ(pickle.unknown_names, std::set<std::string>{"os.system"});
  // What getattr gives is called as well in Python; here both calls are inert.
  const Pickle nested = read_pickle("c__builtin__\ngetattr\n(cos\npath\nS'join'\ntRq\1(tR.", "p");
  EXPECT_THAT(nested.unknown_names, ::testing::Contains("builtins.getattr"));
}

TEST(Pickle, DamageIsToldWithTheByte) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "at byte 0"},
      {"N", "at byte 1"},
      {"\x80\x09.", "protocol 9"},
      {"\xff.", "unknown opcode 255"},
      {"0.", "stack is empty"},
      {"e.", "mark is missing"},
      {"X\xff\xff\xff\x7f.", "are expected"},
      {std::string("\x8d\xff\xff\xff\xff\xff\xff\xff\xff.", 10), "are expected"},
      {"T\xff\xff\xff\xff.", "a length of -1"},
      {"h\x05.", "value number 5"},
      {"(N.", "stops inside"},
      {"}Na.", "appends to a dict"},
      {"]Ns.", "its stack is empty"},
      {"N(K\x01K\x02u.", "sets keys of a None"},
      {"\x82\x01.", "extensions"},
      {"\x97.", "outside it"},
      {"Pid\n.", "persistent id"},
      {"ctorch._utils\n_rebuild_tensor_v2\n)R.", "arguments"},
      {"c_codecs\nencode\n(V\\u20ac\nVlatin1\ntR.", "above 255"}};
  for (const auto& [bytes, why] : cases) {
    const std::string& pickle = bytes;
    EXPECT_THAT([&] { read_pickle(pickle, "p"); }, ThrowsMessage<DataError>(HasSubstr(why))) << bytes;
  }
}

TEST(Pickle, WhatHasNoHashIsNoKeyAndNoMember) {
  const std::pair<std::string, const char*> cases[] = {
      {"}]K\1s.", "a list cannot be a key of a dict or a member of a set"},
      {"}}K\1s.", "a dict cannot be a key"},
      {"}(]\x85K\1u.", "a list cannot be a key"},
      {"\x8f(]\x90.", "a list cannot be a key"},
      {"(}\x91.", "a dict cannot be a key"},
      {"c__builtin__\nset\n](]e\x85R.", "a list cannot be a key"},
      {"ccollections\nOrderedDict\n](]K\1\x86"
       "e\x85R.",
       "a list cannot be a key"}};
  for (const auto& [pickle, why] : cases) {
    const std::string& bytes = pickle;
    EXPECT_THAT(([&] { read_pickle(bytes, "p"); }), ThrowsMessage<DataError>(HasSubstr(why))) << bytes;
  }
  EXPECT_EQ(read_pickle("}K\1K\2\x86K\3s.", "p").value.size(), 1U) << "a tuple of numbers is a key";
}

TEST(Pickle, ATextInThePlaceOfWeightsIsNamedAsOne) {
  for (const char* text : {"{\"a\": 1}", "x\n", "hello world, this is no model\n", "Notes on the model", "[1, 2, 3]"}) {
    EXPECT_THAT([&] { read_pickle(text, "p"); }, ThrowsMessage<DataError>(HasSubstr("it is a text, not weights")))
        << text;
  }
  EXPECT_THAT([&] { read_pickle("first line\nsecond", "p"); },
              ThrowsMessage<DataError>(HasSubstr("with 'first line'.")));
}

TEST(Pickle, ManyLevelsNeedNoStack) {
  std::string deep(200'000, ']');
  deep += std::string(199'999, 'a') + ".";
  PythonValue value = read(deep);
  EXPECT_EQ(value.size(), 1u);
  value = {};  // destroyed without recursion
}

TEST(Pickle, MemoryIsBounded) {
  // Each byte makes a value of many bytes, up to the limit.
  std::string bomb = "](";
  bomb += std::string(12'000'000, 'N') + "e.";
  EXPECT_THAT([&] { read_pickle(bomb, "p"); }, ThrowsMessage<DataError>(HasSubstr("bytes allowed")));
  std::string wide = "]";
  for (int i = 0; i < 1000; ++i) wide += std::string("q\0(h\0h\0e", 8);
  EXPECT_NO_THROW(read_pickle(wide + ".", "p"));
}

TEST(Pickle, AValueInsideItselfIsCut) {
  const PythonValue list = read(std::string("]q\0h\0a.", 7));
  EXPECT_EQ(list[size_t{0}].kind(), Kind::kCycle);
  const PythonValue dict = read(std::string("}q\0X\1\0\0\0ah\0s.", 14));
  EXPECT_EQ(dict.at("a").kind(), Kind::kCycle);
  EXPECT_NO_THROW(read(std::string("]q\0h\0aN0N.", 10)));  // a cycle that the result does not hold
}

TEST(Pickle, OfEqualKeysTheLastValueCounts) {
  const PythonValue dict = read(std::string("}(X\1\0\0\0aK\1X\1\0\0\0bK\2X\1\0\0\0aK\3u.", 29));
  ASSERT_EQ(dict.size(), 2u);
  EXPECT_EQ(dict.as_pairs()[0].second.as_int(), 3);
}

TEST(Zip, ArchivesThatOverlapOrLieAreRefused) {
  const std::vector<ZipPart> parts{{"r/data.pkl", 2}, {"r/x", 3}};
  const ZipLayout layout = lay_out_zip(parts);
  const std::vector<uint32_t> crcs{crc32_of(0, "N.", 2), crc32_of(0, "abc", 3)};
  std::string archive(layout.file_bytes, '\0');
  for (size_t i = 0; i < parts.size(); ++i) {
    archive.replace(layout.header_at[i], layout.body_at[i] - layout.header_at[i],
                    zip_local_header(parts, layout, i, crcs[i]));
    archive.replace(layout.body_at[i], parts[i].size, i == 0 ? "N." : "abc");
  }
  archive.replace(layout.directory_at, std::string::npos, zip_directory(parts, layout, crcs));

  const ZipReader zip(archive, "z");
  EXPECT_EQ(zip.read(*zip.find("r/x")), "abc");
  EXPECT_EQ(zip.find("r/y"), nullptr);
  EXPECT_TRUE(ZipReader::is_zip(archive));

  EXPECT_THROW(ZipReader(std::string_view(archive).substr(0, archive.size() - 1), "z"), DataError);
  const size_t entry = archive.find("PK\x01\x02", layout.directory_at);
  std::string encrypted = archive;
  encrypted[entry + 8] = 1;
  EXPECT_THROW(ZipReader(encrypted, "z"), DataError);
  std::string method = archive;
  method[entry + 10] = 99;
  EXPECT_THROW(ZipReader(method, "z"), DataError);
  std::string overlapping = archive;
  const size_t second = archive.find("PK\x01\x02", entry + 4);
  overlapping.replace(second + 42, 4, archive.substr(entry + 42, 4));
  EXPECT_THROW(ZipReader(overlapping, "z"), DataError);
  std::string beyond = archive;
  beyond.replace(second + 20, 8, "\xff\xff\xff\x7f\xff\xff\xff\x7f");
  EXPECT_THROW(ZipReader(beyond, "z"), DataError);
}

TEST(PythonFile, OtherFilesAreNamedForWhatTheyAre) {
  const ScratchFolder folder;
  const auto refused = [&](const std::string& bytes, const char* why) {
    std::ofstream(folder / "f", std::ios::binary) << bytes;
    EXPECT_THAT([&] { PythonFile::open(folder / "f"); }, ThrowsMessage<DataError>(HasSubstr(why)));
  };
  refused("", "empty");
  refused("version https://git-lfs.github.com/spec/v1\n", "git lfs pull");
  refused(std::string(257, ' ') + "ustar  ", "tar file");
  EXPECT_THROW(PythonFile::open(folder / "missing"), DataError);
  EXPECT_FALSE(PythonFile::is_python_file(folder / "f"));
}

}  // namespace
}  // namespace hasten::files
