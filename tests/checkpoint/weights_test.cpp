// Weights written for Python and transformers, and loads that check before they change anything.
#include "hasten/checkpoint/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>

#include "hasten/checkpoint/python_tensor.h"
#include "hasten/core/error.h"
#include "hasten/files/python/python_file.h"
#include "support/folder.h"
#include "support/models.h"

namespace hasten::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

class Weights : public testing::InFolder {};

testing::Cnn cnn(uint64_t seed) {
  testing::Cnn net;
  testing::initialise(*net, seed);
  return net;
}

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

bool same(const torch::nn::Module& a, const torch::nn::Module& b) {
  const auto one = state_dict(a), other = state_dict(b);
  for (const auto& [name, tensor] : one) {
    if (!tensor.equal(other.at(name))) return false;
  }
  return one.size() == other.size();
}

TEST_F(Weights, AModuleIsSavedAndAPathMayBeALiteral) {
  const auto net = cnn(1);
  save_model(*net, path("net"));
  fs::current_path(path("net"));

  auto by_literal = cnn(2), by_path = cnn(3);
  load_weights(*by_literal, "model.safetensors");
  load_weights(*by_path, fs::path("model.safetensors"), {.strict = true});
  fs::current_path("/");

  EXPECT_TRUE(same(*net, *by_literal));
  EXPECT_TRUE(same(*net, *by_path));
}

TEST_F(Weights, AnyFormIsReadBack) {
  const auto net = cnn(1);
  save_model(state_dict(*net), path("safe"), {.max_shard_size = "500"});
  save_model(state_dict(*net), path("plain"), {.safe_serialization = false});
  save(state_dict(*net), path("net.pth"));
  save(*net, path("net.safetensors"), {.safe_serialization = true});

  for (const auto& name : {"safe", "plain", "net.pth", "net.safetensors", "safe/model.safetensors.index.json"}) {
    auto loaded = cnn(2);
    load_weights(*loaded, path(name));
    EXPECT_TRUE(same(*net, *loaded)) << name;
  }
  auto loaded = cnn(3);
  load_weights(*loaded, files::PythonFile::open(path("net.pth")).value());
  EXPECT_TRUE(same(*net, *loaded));
}

TEST_F(Weights, StaleFilesOfEitherFormGoAndOthersStay) {
  write("out/notes.txt", "mine");
  write("out/model-00009-of-00099.txt", "mine");
  save_model(state_dict(*cnn(1)), path("out"), {.max_shard_size = "500", .safe_serialization = false});
  save_model(state_dict(*cnn(2)), path("out"), {.max_shard_size = "10GB"});

  EXPECT_THAT(files_in(path("out")), ElementsAre("model-00009-of-00099.txt", "model.safetensors", "notes.txt"));
}

TEST_F(Weights, TiedTensorsAreStoredOnceAndStayTied) {
  StateDict state;
  const at::Tensor shared = at::rand({4, 3});
  state.set("embed.weight", shared);
  state.set("head.weight", shared);
  save_model(state, path("tied"));
  struct Tied : torch::nn::Module {
    Tied() {
      first = register_parameter("embed", at::zeros({4, 3}));
      second = register_parameter("head", first);
    }
    at::Tensor first, second;
  } net;

  const auto report = load_weights(net, path("tied"), {.rename = {{"embed.weight", "embed"}}});

  EXPECT_EQ(files::PythonFile::is_python_file(path("tied/model.safetensors")), false);
  EXPECT_TRUE(report.missing.empty());
  EXPECT_TRUE(net.first.equal(shared));
  EXPECT_EQ(net.first.data_ptr(), net.second.data_ptr());
}

TEST_F(Weights, AllThatDiffersStandsInOneErrorAndNothingChanges) {
  auto state = state_dict(*cnn(1));
  StateDict other;
  for (const auto& [name, tensor] : state) {
    if (name == "head.bias") continue;
    other.set(name == "conv.bias" ? "conv.bais" : name, name == "head.weight" ? at::zeros({2, 2}) : tensor);
  }
  auto net = cnn(5);
  const auto before = state_dict(*net).at("conv.weight").clone();

  const auto words = testing::words_of<UsageError>([&] { load_weights(*net, other); });

  EXPECT_THAT(words, HasSubstr("missing (2): conv.bias, head.bias"));
  EXPECT_THAT(words, HasSubstr("unexpected (1): conv.bais, did you mean 'conv.bias'?"));
  EXPECT_THAT(words, HasSubstr("mismatched (1): head.weight [2, 2] in the file, [4, 96] here"));
  EXPECT_TRUE(net->conv->weight.equal(before));
}

TEST_F(Weights, WhatFitsIsTakenWithoutStrictAndNamesMayBeChanged) {
  StateDict renamed;
  for (const auto& [name, tensor] : state_dict(*cnn(1))) renamed.set("module.old_" + name, tensor);
  renamed.set("module.old_extra", at::ones({1}));
  auto net = cnn(5);

  const auto report = load_weights(*net, renamed, {.strict = false, .rename = {{"old_", ""}}});

  EXPECT_THAT(report.unexpected, ElementsAre("module.old_extra"));
  EXPECT_TRUE(same(*cnn(1), *net));
}

TEST_F(Weights, DtypesAreCastOrTheModuleTakesThem) {
  StateDict half;
  for (const auto& [name, tensor] : state_dict(*cnn(1)))
    half.set(name, tensor.is_floating_point() ? tensor.to(at::kHalf) : tensor);
  auto net = cnn(5);

  load_weights(*net, half);
  EXPECT_EQ(net->conv->weight.scalar_type(), at::kFloat);
  const auto* identity = net->conv->weight.unsafeGetTensorImpl();
  load_weights(*net, half, {.dtype = at::kHalf});

  EXPECT_EQ(net->conv->weight.scalar_type(), at::kHalf);
  EXPECT_EQ(net->conv->weight.unsafeGetTensorImpl(), identity);
  EXPECT_TRUE(net->conv->weight.equal(half.at("conv.weight")));
}

TEST_F(Weights, AFileInTheFoldersPlaceIsRefused) {
  write("taken", "file");
  EXPECT_THAT(testing::words_of<UsageError>([&] { save_model(state_dict(*cnn(1)), path("taken")); }),
              HasSubstr("is a file"));
  EXPECT_THROW(save_model(state_dict(*cnn(1)), path("x"), {.max_shard_size = "5 apples"}), UsageError);
}

TEST_F(Weights, SavePretrainedWritesTheVariantAndItsConfig) {
  save_pretrained(path("hub"), state_dict(*cnn(1)),
                  {.variant = "fp16", .config = core::Value::map({{"model_type", "cnn"}})});
  save_pretrained(path("not"), state_dict(*cnn(1)), {.is_main_process = false});

  EXPECT_THAT(files_in(path("hub")), ElementsAre("config.json", "model.fp16.safetensors"));
  EXPECT_FALSE(fs::exists(path("not")));
}

TEST_F(Weights, NestedStatesAndTensorsAreSavedAsPythonDoes) {
  save(training::State::of({{"step", 3}, {"ema", at::ones({2})}}), path("state.pt"));
  save(at::arange(3), path("tensor.pt"));

  const auto file = files::PythonFile::open(path("state.pt"));
  EXPECT_EQ(file["step"].as_int(), 3);
  EXPECT_TRUE(tensor_of(file["ema"]).equal(at::ones({2})));
  EXPECT_TRUE(tensor_of(files::PythonFile::open(path("tensor.pt")).value()).equal(at::arange(3)));
}

}  // namespace
}  // namespace hasten::checkpoint
