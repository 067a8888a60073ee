// Optimizers' state between Python's numbers, FSDP's names and hasten's own folder.
#include "hasten/files/folders/optimizer_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "files/memory_source.h"
#include "hasten/core/error.h"
#include "hasten/files/python/python_file.h"

namespace hasten::files {
namespace {

using files::testing::MemorySource;
using files::testing::ScratchFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

PythonValue floats(std::vector<int64_t> shape, std::vector<float> values) {
  const auto owner = std::make_shared<const std::vector<float>>(std::move(values));
  return tensor_value(Dtype::kFloat32, std::move(shape), owner->data(), owner);
}

MemorySource weights() {
  MemorySource source;
  source.add("a.weight", {2, 2}, {1, 2, 3, 4});
  source.add("a.running_mean", {2}, {0, 0});
  source.add("b.bias", {3}, {5, 6, 7});
  return source;
}

// AdamW's state of two parameters, as torch.save wrote it.
PythonValue saved() {
  PythonValue state = PythonValue::dict();
  state.set(0, PythonValue::dict({{"step", floats({}, {7})}, {"exp_avg", floats({2, 2}, {1, 2, 3, 4})}}));
  state.set(1, PythonValue::dict({{"step", floats({}, {7})}, {"exp_avg", floats({3}, {5, 6, 7})}}));
  const PythonValue group = PythonValue::dict({{"lr", 0.5},
                                               {"betas", PythonValue::tuple({0.9, 0.99})},
                                               {"amsgrad", false},
                                               {"param_names", PythonValue::list({"a.weight", "b.bias"})},
                                               {"params", PythonValue::list({0, 1})}});
  return PythonValue::dict({{"state", state}, {"param_groups", PythonValue::list({group})}});
}

std::vector<float> values_of(const PythonValue& tensor) {
  std::vector<float> values(static_cast<size_t>(numel_of(tensor.as_tensor().shape)));
  read_tensor(tensor.as_tensor(), whole_box(tensor.as_tensor().shape), values.data());
  return values;
}

TEST(OptimizerFolder, NumbersBecomeNamesAndNumbersAgain) {
  const ScratchFolder folder;
  save_python_file(real_disk(), folder / "optimizer.bin", saved());

  const auto named = read_optimizer(folder.path(), 0, weights());
  const PythonValue numbered = numbered_optimizer(*named);

  ASSERT_TRUE(named.has_value());
  EXPECT_EQ((*named)["param_groups"][0]["params"][1].as_string(), "b.bias");
  EXPECT_THAT(values_of((*named)["state"]["a.weight"]["exp_avg"]), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(numbered["param_groups"][0]["params"][1].as_int(), 1);
  EXPECT_THAT(values_of(numbered["state"].find(int64_t{1})->at("exp_avg")), ElementsAre(5, 6, 7));
  EXPECT_FALSE(read_optimizer(folder.path(), 1, weights()).has_value());
}

// A file of weights sorts its names, so that two layers of one shape would get each other's moments.
TEST(OptimizerFolder, NumbersWithoutNamesAreRefusedWithBothRemedies) {
  const ScratchFolder folder;
  PythonValue value = saved();
  PythonValue group = PythonValue::dict();
  for (const auto& [key, option] : value["param_groups"][0].as_pairs()) {
    if (key.as_string() != "param_names") group.set(key, option);
  }
  value.set("param_groups", PythonValue::list({group}));
  save_python_file(real_disk(), folder / "optimizer.bin", value);

  EXPECT_THAT([&] { read_optimizer(folder.path(), 0, weights()); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("optimizer.bin"), HasSubstr("--only model"), HasSubstr("load_state"))));
}

// Numbers follow the optimizer's groups, not the order of the weights.
TEST(OptimizerFolder, NamesBesideTheNumbersDecide) {
  const ScratchFolder folder;
  PythonValue value = saved();
  PythonValue group = PythonValue::dict();
  for (const auto& [key, option] : value["param_groups"][0].as_pairs()) group.set(key, option);
  group.set("param_names", PythonValue::list({"z.weight", "a.weight"}));
  PythonValue state = PythonValue::dict();
  state.set(0, PythonValue::dict({{"exp_avg", floats({2}, {1, 2})}}));
  state.set(1, PythonValue::dict({{"exp_avg", floats({2}, {3, 4})}}));
  value.set("param_groups", PythonValue::list({group}));
  value.set("state", state);
  save_python_file(real_disk(), folder / "optimizer.bin", value);
  MemorySource sorted;
  sorted.add("a.weight", {2}, {0, 0});
  sorted.add("z.weight", {2}, {0, 0});

  const auto named = read_optimizer(folder.path(), 0, sorted);

  EXPECT_THAT(values_of((*named)["state"]["z.weight"]["exp_avg"]), ElementsAre(1, 2));
  EXPECT_THAT(values_of((*named)["state"]["a.weight"]["exp_avg"]), ElementsAre(3, 4));
}

TEST(OptimizerFolder, HastensFolderGivesTheSameState) {
  const ScratchFolder folder;
  save_python_file(real_disk(), folder / "optimizer.bin", saved());
  const auto named = read_optimizer(folder.path(), 0, weights());
  std::filesystem::create_directories(folder / "own");
  core::Value parts = core::Value::map();

  write_hasten_optimizers(real_disk(), folder / "own", {*named}, parts);
  Manifest manifest = manifest_of_headers(folder / "own");
  manifest.parts = parts;
  write_manifest(real_disk(), folder / "own", manifest);
  const auto again = read_optimizer(folder / "own", 0, weights());

  ASSERT_TRUE(again.has_value());
  EXPECT_EQ((*again)["param_groups"][0]["lr"].as_double(), 0.5);
  EXPECT_EQ((*again)["param_groups"][0]["betas"].kind(), PythonValue::Kind::kTuple);
  EXPECT_THAT(values_of((*again)["state"]["a.weight"]["exp_avg"]), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(values_of((*again)["state"]["b.bias"]["step"]), ElementsAre(7));
}

TEST(OptimizerFolder, AnOptimizerOfAnotherModelIsRefused) {
  const ScratchFolder folder;
  save_python_file(real_disk(), folder / "optimizer.bin", saved());
  MemorySource other;
  other.add("a.weight", {2, 2}, {1, 2, 3, 4});
  other.add("b.bias", {4}, {5, 6, 7, 8});

  EXPECT_THAT([&] { read_optimizer(folder.path(), 0, other); },
              ThrowsMessage<UsageError>(HasSubstr("exp_avg of parameter 'b.bias'")));
}

}  // namespace
}  // namespace hasten::files
