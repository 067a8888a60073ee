// Schedulers, scalers and random streams in Python's forms.
#include "checkpoint/training_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "hasten/checkpoint/python_tensor.h"
#include "hasten/core/error.h"
#include "hasten/optim/schedulers/schedulers.h"
#include "hasten/training/stateful.h"
#include "support/folder.h"

namespace hasten::checkpoint {
namespace {

using ::testing::HasSubstr;

// Values of CPython 3.11's random.seed(1) and numpy's RandomState(1).
TEST(Mt19937, StatesAreThoseOfPythonAndNumpy) {
  const auto python = mt19937_state(1, true), numpy = mt19937_state(1, false);
  EXPECT_EQ(std::vector<uint32_t>(python.begin(), python.begin() + 4),
            (std::vector<uint32_t>{2147483648U, 163610392U, 3414454684U, 213706556U}));
  EXPECT_EQ(std::vector<uint32_t>(numpy.begin(), numpy.begin() + 4),
            (std::vector<uint32_t>{1U, 1812433254U, 3713160357U, 3109174145U}));
}

TEST(SchedulerState, GoesThroughPythonsDictAndBack) {
  torch::optim::SGD sgd({torch::ones({1})}, 0.1), other({torch::ones({1})}, 0.1);
  const optim::SequentialLROptions options{
      .schedulers = {optim::recipe<optim::ConstantLR>({.factor = 0.5, .total_iters = 3}),
                     optim::recipe<optim::ExponentialLR>({.gamma = 0.8})},
      .milestones = {3}};
  optim::SequentialLR saved(sgd, options), loaded(other, options);
  for (int i = 0; i < 5; ++i) saved.step();

  const auto python = scheduler_to_python(training::state_of(saved).value());
  training::load_state_of(loaded, training::State(scheduler_from_python(python, training::state_of(loaded).value())));

  EXPECT_EQ(python["_schedulers"].size(), 2u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(saved.rates(), loaded.rates());
    saved.step();
    loaded.step();
  }
}

TEST(SchedulerState, OptionsOfPythonsDictStandBesideOnesOwn) {
  using files::PythonValue;
  torch::optim::SGD sgd({torch::ones({1})}, 0.1);
  const optim::SequentialLROptions options{.schedulers = {optim::recipe<optim::StepLR>({.step_size = 3, .gamma = 0.5}),
                                                          optim::recipe<optim::MultiStepLR>({.milestones = {2, 4}})},
                                           .milestones = {3}};
  optim::SequentialLR scheduler(sgd, options);
  const auto own = training::state_of(scheduler).value();
  const auto counter = PythonValue::pairs_of(PythonValue::Kind::kCounter,
                                             {{PythonValue(6), PythonValue(1)}, {PythonValue(2), PythonValue(2)}});
  const auto saved = PythonValue::dict(
      {{"_schedulers", PythonValue::list({PythonValue::dict({{"step_size", 30}, {"gamma", 0.5}, {"last_epoch", 1}}),
                                          PythonValue::dict({{"milestones", counter}, {"gamma", 0.1}})})}});

  const auto compared = scheduler_options_from_python(saved, own);

  EXPECT_EQ(own.at("schedulers").as_list()[0].at("options"), core::Value::map({{"step_size", 3}, {"gamma", 0.5}}));
  EXPECT_EQ(compared.at("schedulers").as_list()[0].at("options"),
            core::Value::map({{"step_size", 30}, {"gamma", 0.5}}));
  EXPECT_EQ(compared.at("schedulers").as_list()[1].at("options").at("milestones"), core::Value::list({2, 2, 6}));
}

TEST(SchedulerState, AnInfiniteMetricSurvivesAndAnotherKindIsRefused) {
  torch::optim::SGD sgd({torch::ones({1})}, 0.1);
  optim::ReduceLROnPlateau plateau(sgd, {});
  optim::StepLR step(sgd, {.step_size = 2});

  const auto python = scheduler_to_python(training::state_of(plateau).value());

  EXPECT_TRUE(std::isinf(python["best"].as_double()));
  training::load_state_of(plateau, training::State(scheduler_from_python(python, training::state_of(plateau).value())));
  EXPECT_TRUE(std::isinf(plateau.best()));
  EXPECT_THAT(testing::words_of<DataError>([&] { scheduler_from_python(python, training::state_of(step).value()); }),
              HasSubstr("ReduceLROnPlateau for StepLR"));
}

TEST(ScalerState, ApexsFormIsRead) {
  const auto own = core::Value::map({{"scale", 65536.0},
                                     {"growth_factor", 2.0},
                                     {"backoff_factor", 0.5},
                                     {"growth_interval", 2000},
                                     {"_growth_tracker", 0}});
  const auto apex = files::PythonValue::dict(
      {{"loss_scaler0", files::PythonValue::dict({{"loss_scale", 1024.0}, {"unskipped", int64_t{7}}})}});

  const auto loaded = scaler_from_python(apex, own);

  EXPECT_EQ(loaded.at("scale").as_double(), 1024.0);
  EXPECT_EQ(loaded.at("_growth_tracker").as_int(), 7);
  EXPECT_EQ(scaler_from_python(scaler_to_python(own), own), own);
  EXPECT_TRUE(scaler_from_python(files::PythonValue::dict(), own).empty());
}

TEST(RandomStates, WhatPythonHadIsCarriedThrough) {
  PythonRandom random{process::capture_random_state(), 12, files::PythonValue::tuple({int64_t{3}}), {}};

  const auto again = random_from_python(to_python(random, 5));

  EXPECT_EQ(again.step, 12);
  EXPECT_TRUE(again.torch.cpu.equal(random.torch.cpu));
  EXPECT_EQ(again.python.size(), 1u);
  EXPECT_EQ(again.numpy[1][0].as_int(), 5);
  EXPECT_EQ(again.numpy[2].as_int(), 624);
  EXPECT_THROW(random_from_python(files::PythonValue::dict()), DataError);
}

TEST(PythonTensors, ASparseOneIsReadAndAQuantizedOneIsNamed) {
  const auto dense = torch::tensor({{0.0F, 2.0F}, {3.0F, 0.0F}}), sparse = dense.to_sparse();
  const auto parts = python_tensors({sparse.indices().contiguous(), sparse.values()});
  files::PythonTensor tensor;
  tensor.shape = {2, 2};
  tensor.indices = std::make_shared<files::PythonTensor>(parts[0]);
  tensor.values = std::make_shared<files::PythonTensor>(parts[1]);
  tensor.unreadable = "it is sparse";  // as of a file
  files::PythonTensor quantized;
  quantized.unreadable = "it is quantized";

  EXPECT_TRUE(tensor_of(tensor).to_dense().equal(dense));
  EXPECT_NE(testing::words_of<DataError>([&] { tensor_of(quantized); }).find("cannot be read, since it is quantized"),
            std::string::npos);
}

}  // namespace
}  // namespace hasten::checkpoint
