// Folders of DCP whose metadata lists entries as the ranks gave them, not as the state_dict had them.
#include "hasten/files/folders/dcp_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "files/memory_source.h"
#include "hasten/files/python/python_file.h"

namespace hasten::files {
namespace {

using files::testing::bytes_of_tensor;
using files::testing::ScratchFolder;

// ---- a pickle of objects, which no writer of the library makes

std::string number_bytes(uint32_t number) {
  std::string bytes;
  for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(number >> shift & 0xff));
  return bytes;
}
std::string pickled(const std::string& value) {
  return "X" + number_bytes(static_cast<uint32_t>(value.size())) + value;
}
std::string pickled(int64_t value) {
  return "J" + number_bytes(static_cast<uint32_t>(value));
}
std::string pickled_dict(const std::vector<std::pair<std::string, std::string>>& pairs) {
  std::string pickle = "}(";
  for (const auto& [key, value] : pairs) pickle += key + value;
  return pickle + "u";
}
std::string pickled_object(const std::string& name,
                           const std::vector<std::pair<std::string, std::string>>& attributes) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const auto& [key, value] : attributes) pairs.emplace_back(pickled(key), value);
  return "ctorch.distributed.checkpoint.metadata\n" + name + "\n)\x81" + pickled_dict(pairs) + "b";
}

/// An entry of a state_dict: its path, and what is saved there.
struct Entry {
  std::vector<DcpKey> path;
  float value = 0;
  bool is_tensor = false;

  std::string flat() const {
    std::string name;
    for (const DcpKey& key : path) {
      if (!name.empty()) name += '.';
      name += std::holds_alternative<std::string>(key) ? std::get<std::string>(key)
                                                       : std::to_string(std::get<int64_t>(key));
    }
    return name;
  }
  std::string pickled_path() const {
    std::string pickle = "(";
    for (const DcpKey& key : path) std::visit([&](const auto& one) { pickle += pickled(one); }, key);
    return pickle + "t";
  }
  std::string pickled_metadata() const {
    if (!is_tensor) return pickled_object("BytesStorageMetadata", {});
    const std::string one = "(" + pickled(1) + "t", zero = "(" + pickled(0) + "t";
    return pickled_object(
        "TensorStorageMetadata",
        {{"properties", pickled_object("TensorProperties", {{"dtype", "ctorch\nfloat32\n"}})},
         {"size", one},
         {"chunks", "](" + pickled_object("ChunkStorageMetadata", {{"offsets", zero}, {"sizes", one}}) + "e"}});
  }
};

/// Writes `entries`, whose order is that of the state_dict, to a folder whose metadata lists them by `order`.
void write_dcp(const std::string& folder, const std::vector<Entry>& entries, const std::vector<size_t>& order) {
  std::vector<std::pair<std::string, std::string>> planned, stored, described;
  for (size_t i = 0; i < entries.size(); ++i) {
    const std::string flat = entries[i].flat(), file = "__" + std::to_string(i) + "_0.distcp";
    const auto owner = std::make_shared<const float>(entries[i].value);
    write_python_file(real_disk(), folder + "/" + file,
                      entries[i].is_tensor ? tensor_value(Dtype::kFloat32, {1}, owner.get(), owner)
                                           : PythonValue(static_cast<double>(entries[i].value)));
    const auto bytes = static_cast<int64_t>(std::filesystem::file_size(folder + "/" + file));
    planned.emplace_back(pickled(flat), entries[i].pickled_path());
    std::vector<std::pair<std::string, std::string>> index{{"fqn", pickled(flat)}};
    if (entries[i].is_tensor) index.emplace_back("offset", "(" + pickled(0) + "t");
    stored.emplace_back(
        pickled_object("MetadataIndex", index),
        pickled_object("_StorageInfo",
                       {{"relative_path", pickled(file)}, {"offset", pickled(0)}, {"length", pickled(bytes)}}));
  }
  for (const size_t i : order) described.emplace_back(pickled(entries[i].flat()), entries[i].pickled_metadata());
  std::ofstream(folder + "/.metadata", std::ios::binary)
      << "\x80\x02"
      << pickled_object("Metadata", {{"state_dict_metadata", pickled_dict(described)},
                                     {"planner_data", pickled_dict(planned)},
                                     {"storage_data", pickled_dict(stored)}})
      << ".";
}

TEST(DcpFolder, EntriesComeInTheOrderInWhichTheyWereSaved) {
  const ScratchFolder folder;
  const std::vector<Entry> entries{
      {{"z.weight"}, 1, true}, {{"a.weight"}, 2, true}, {{"epoch"}, 3}, {{"m.weight"}, 4, true}};
  write_dcp(folder.path(), entries, {3, 1, 2, 0});

  const DcpFolder opened = DcpFolder::open(folder.path());
  const PythonValue state = opened.state_dict();
  std::vector<std::string> keys;
  for (const auto& [key, value] : state.as_pairs()) keys.push_back(key.as_string());

  EXPECT_EQ(opened.tensors()->names(), (std::vector<std::string>{"z.weight", "a.weight", "m.weight"}));
  EXPECT_EQ(keys, (std::vector<std::string>{"z.weight", "a.weight", "epoch", "m.weight"}));
  float value = 0;
  opened.tensors()->read_all("a.weight", &value);
  EXPECT_EQ(value, 2);
}

TEST(DcpFolder, AListWhoseEntriesLieOnSeveralRanksStaysAList) {
  const ScratchFolder folder;
  std::vector<Entry> entries;
  std::vector<size_t> order;
  for (int64_t group = 0; group < 12; ++group) {
    entries.push_back({{"param_groups", group, "lr"}, static_cast<float>(group)});
    entries.push_back({{"param_groups", group, "step"}, static_cast<float>(100 + group), true});
  }
  // Rank r of five has the entries r, r + 5, …
  for (size_t rank = 0; rank < 5; ++rank) {
    for (size_t i = rank; i < entries.size(); i += 5) order.push_back(i);
  }
  write_dcp(folder.path(), entries, order);

  const PythonValue state = DcpFolder::open(folder.path()).state_dict();
  const PythonValue& groups = state.at("param_groups");

  ASSERT_EQ(groups.kind(), PythonValue::Kind::kList);
  ASSERT_EQ(groups.size(), 12U);
  for (size_t group = 0; group < 12; ++group) {
    EXPECT_EQ(groups[group].at("lr").as_double(), static_cast<double>(group));
    EXPECT_TRUE(groups[group].at("step").is_tensor());
  }
}

TEST(DcpFolder, NumbersWithAGapAreKeysAndNoPlaces) {
  const ScratchFolder folder;
  write_dcp(folder.path(), {{{"state", int64_t{0}}, 1}, {{"state", int64_t{2}}, 2}}, {1, 0});

  const PythonValue state = DcpFolder::open(folder.path()).state_dict();

  ASSERT_TRUE(state.at("state").is_mapping());
  EXPECT_EQ(state.at("state").find(int64_t{2})->as_double(), 2);
}

}  // namespace
}  // namespace hasten::files
