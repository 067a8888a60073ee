// What a Learner says about data and about itself: predictions under each option, tables, summaries; other data.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <fstream>
#include <set>

#include "hasten/learner/callbacks.h"
#include "hasten/learner/image_loaders.h"
#include "hasten/learner/recorder.h"
#include "learner/small_tasks.h"
#include "support/folder.h"

namespace hasten::learner {
namespace {

using hasten::testing::words_of;
using EvaluationFiles = hasten::testing::InFolder;

at::Tensor outputs_of(const Learner& learn, const at::Tensor& x) {
  const at::NoGradGuard no_grad;
  learn.model().module()->eval();
  return learn.model()({x}).front();
}

TEST(Predictions, AreOfTheDataThatIsNamedInTheOrderThatIsNamed) {
  const Learner learn(data_of(50), net(), quiet());
  const auto train = rows(50, 1), valid = rows(20, 2);

  const auto of_valid = learn.get_preds({.with_input = true, .with_decoded = true, .with_loss = true});
  const auto of_train = learn.get_preds({.ds_idx = 0});
  const auto shuffled = learn.get_preds({.ds_idx = 0, .with_input = true, .reorder = false});

  const auto wanted = outputs_of(learn, valid.data);
  EXPECT_TRUE(of_valid.inputs.equal(valid.data));
  EXPECT_TRUE(of_valid.targets.equal(valid.target));
  EXPECT_TRUE(at::allclose(of_valid.preds, at::softmax(wanted, 1)));
  EXPECT_TRUE(of_valid.decoded.equal(wanted.argmax(1)));
  EXPECT_TRUE(at::allclose(of_valid.losses, at::cross_entropy_loss(wanted, valid.target, {}, at::Reduction::None)));
  EXPECT_TRUE(of_train.targets.equal(train.target));
  EXPECT_FALSE(shuffled.inputs.equal(train.data));
  EXPECT_TRUE(std::get<0>(shuffled.inputs.select(1, 0).sort()).equal(std::get<0>(train.data.select(1, 0).sort())));
  EXPECT_TRUE(at::allclose(shuffled.preds, at::softmax(outputs_of(learn, shuffled.inputs), 1)));
  EXPECT_FALSE(of_train.inputs.defined());
  EXPECT_NE(words_of<UsageError>([&] { learn.get_preds({.ds_idx = 2}); }).find("ds_idx 2; expected 0"),
            std::string::npos);
}

TEST(Predictions, AreActivatedJoinedAndLeftOutAsAsked) {
  const auto data = rows(16, 2);
  const Learner learn(tensor_loaders(rows(16, 1), data, {.batch_size = 8}), net(), quiet());
  const auto outputs = outputs_of(learn, data.data);

  const auto doubled = learn.get_preds({.act = [](const at::Tensor& x) { return x * 2; }});
  const auto side_by_side =
      learn.get_preds({.with_targs = false, .act = [](const at::Tensor& x) { return x; }, .concat_dim = 1});

  EXPECT_TRUE(at::allclose(doubled.preds, outputs * 2));
  EXPECT_TRUE(at::allclose(side_by_side.preds, at::cat({outputs.slice(0, 0, 8), outputs.slice(0, 8, 16)}, 1)));
  EXPECT_FALSE(side_by_side.targets.defined());
}

TEST(Predictions, InsideAFitLeaveItAsItWas) {
  struct Ask : Callback {
    std::string_view name() const override { return "ask"; }
    void after_batch(Learner& learn) override {
      if (learn.training() && learn.iter() == 2) given = learn.get_preds({.inner = true}).preds;
    }
    at::Tensor given;
  };
  auto asked = net(), plain = net();
  const Learner a(data_of(50), asked, quiet()), b(data_of(50), plain, quiet());
  const auto ask = std::make_shared<Ask>();
  const auto fetch = std::make_shared<FetchPreds>(PredsOptions{.ds_idx = 0});

  a.no_logging([&] { a.fit_one_cycle(2, 0.02, {.cbs = callbacks(ask, fetch)}); });
  b.no_logging([&] { b.fit_one_cycle(2, 0.02); });

  expect_equal(state_of(*asked), state_of(*plain));
  EXPECT_EQ(ask->given.size(0), 20);
  EXPECT_EQ(a.recorder().losses(), b.recorder().losses());
  EXPECT_EQ(a.train_iter(), b.train_iter());
  EXPECT_TRUE(at::allclose(fetch->preds.preds, a.get_preds({.ds_idx = 0}).preds));
}

TEST(Predictions, OfOneSampleHaveItsNameIndexAndProbabilities) {
  auto loaders = data_of();
  loaders.vocab = {"ant", "bee", "cat"};
  const Learner named(loaders, net(), quiet()), unnamed(data_of(), net(), quiet());
  const auto sample = rows(20, 2).data[3];
  const auto outputs = outputs_of(named, sample.unsqueeze(0))[0];
  const auto index = outputs.argmax().item<int64_t>();

  const auto given = named.predict({sample});

  EXPECT_EQ(given.decoded, loaders.vocab[static_cast<size_t>(index)]);
  EXPECT_EQ(given.label.item<int64_t>(), index);
  EXPECT_TRUE(at::allclose(given.probabilities, at::softmax(outputs, 0)));
  EXPECT_EQ(unnamed.predict({sample}).decoded, std::to_string(index));
}

TEST(Predictions, OfAugmentedPassesAreAlsoTheLargerOfAll) {
  auto loaders = data_of();
  loaders.augment = [](const Batch& batch) { return Batch{{batch.inputs.front() * 2}, batch.targets}; };
  const Learner learn(loaders, net(), quiet()), without(data_of(), net(), quiet());
  const auto x = rows(20, 2).data;

  const auto given = learn.tta({.n = 3, .use_max = true});

  const auto plain = at::softmax(outputs_of(learn, x), 1), twice = at::softmax(outputs_of(learn, x * 2), 1);
  EXPECT_TRUE(at::allclose(given.preds, at::maximum(plain, twice)));
  EXPECT_TRUE(given.targets.equal(rows(20, 2).target));
  EXPECT_NE(words_of<UsageError>([&] { without.tta(); }).find("without Loaders::augment"), std::string::npos);
}

TEST(Validation, IsOfTheDataThatIsNamedWithItsCallbacks) {
  const Learner learn(data_of(50), net(), quiet());
  const auto collect = std::make_shared<CollectData>();
  const auto right = [&](const torch::data::Example<>& data) {
    return outputs_of(learn, data.data).argmax(1).eq(data.target).to(at::kDouble).mean().item<double>();
  };
  const auto other = rows(24, 9);

  EXPECT_DOUBLE_EQ(learn.validate().at(1), right(rows(20, 2)));
  EXPECT_DOUBLE_EQ(learn.validate({.ds_idx = 0}).at(1), right(rows(50, 1)));
  const auto row =
      learn.validate({.loader = tensor_loader(other.data, other.target, {.batch_size = 8, .shuffle = false}),
                      .cbs = callbacks(collect)});
  EXPECT_DOUBLE_EQ(row.at(1), right(other));
  EXPECT_NEAR(row.at(0), at::cross_entropy_loss(outputs_of(learn, other.data), other.target).item<double>(), 1e-6);
  ASSERT_EQ(collect->data.size(), 3U);
  EXPECT_FALSE(collect->data[1].training);
  EXPECT_TRUE(collect->data[1].batch.inputs.front().equal(other.data.slice(0, 8, 16)));
  EXPECT_TRUE(collect->data[1].batch.targets.front().equal(other.target.slice(0, 8, 16)));
  EXPECT_TRUE(at::allclose(collect->data[1].prediction, outputs_of(learn, other.data.slice(0, 8, 16))));
  EXPECT_EQ(learn.find<CollectData>(), nullptr);
}

TEST(Results, AreATableOfTargetsAndPredictions) {
  auto loaders = data_of();
  loaders.vocab = {"ant", "bee", "cat"};
  const Learner learn(loaders, net(), quiet());
  const auto preds = learn.get_preds({.with_decoded = true});
  std::string wanted = "target              prediction\n";
  for (int64_t i = 0; i < 3; ++i) {
    const auto name = [&](const at::Tensor& of) { return loaders.vocab[static_cast<size_t>(of[i].item<int64_t>())]; };
    wanted += name(preds.targets) + std::string(17, ' ') + name(preds.decoded) + "\n";
  }

  ::testing::internal::CaptureStdout();
  const auto table = learn.show_results(3);

  EXPECT_EQ(::testing::internal::GetCapturedStdout(), wanted + "\n");
  EXPECT_EQ(table, wanted);
}

TEST(Summary, CountsParametersAndWhatTrains) {
  const Learner learn(data_of(), net(), quiet());
  const auto line_of = [&](const std::string& layer) {
    const auto all = learn.summary();
    const auto at = all.find("\n" + layer + " ");
    return at == std::string::npos ? all : all.substr(at + 1, all.find('\n', at + 1) - at - 1);
  };

  EXPECT_NE(line_of("0 Linear").find("[8, 6] [8]"), std::string::npos) << learn.summary();
  EXPECT_NE(line_of("0 Linear").find("56 "), std::string::npos);
  EXPECT_NE(line_of("0 Linear").find("yes"), std::string::npos);
  EXPECT_NE(learn.summary().find("total 99, trainable 99, loss cross_entropy"), std::string::npos);
  learn.freeze();
  EXPECT_NE(line_of("0 Linear").find(" no"), std::string::npos);
  EXPECT_NE(line_of("1 BatchNorm1d").find("yes"), std::string::npos) << "norm layers go on training";
  EXPECT_NE(learn.summary().find("trainable 43,"), std::string::npos) << learn.summary();
}

TEST_F(EvaluationFiles, TheRangeTestLeavesItsCurveInAFile) {
  const Learner learn(data_of(), net(), quiet(folder_));

  const auto found = learn.lr_find(
      {.num_it = 20, .stop_div = false, .suggest = {Suggestion::kValley, Suggestion::kSteep}, .write_csv = true});

  std::ifstream file(path("lr_find.csv"));
  std::string line;
  std::getline(file, line);
  EXPECT_EQ(line, "lr,loss");
  size_t count = 0;
  while (std::getline(file, line)) ++count;
  EXPECT_EQ(count, 20U);
  EXPECT_EQ(found.lrs.size(), 20U);
  EXPECT_EQ(found.losses.size(), 20U);
  EXPECT_EQ(found.valley, found.suggestions.at("valley"));
  EXPECT_EQ(found.suggestions.count("steep"), 1U);
  EXPECT_NE(words_of<UsageError>([&] { learn.lr_find({.start_lr = 1, .end_lr = 0.1}); }).find("expected 0 < start_lr"),
            std::string::npos);
}

TEST(OtherData, IsTrainedOnFromTheNextPassOn) {
  struct Count : Callback {
    std::string_view name() const override { return "count"; }
    void before_batch(Learner& learn) override { seen.insert(learn.inputs().front().sum().item<float>()); }
    std::set<float> seen;
  };
  const auto sums = [](const at::Tensor& x, int64_t batch) {
    std::set<float> all;
    for (const auto& part : x.split(batch)) all.insert(part.sum().item<float>());
    return all;
  };
  const auto data = rows(24, 7);
  const Learner learn(data_of(48, false), net(), quiet());
  learn.no_logging([&] { learn.fit(1, 0.01); });
  const auto count = std::make_shared<Count>();
  auto loaders = tensor_loaders(data, data, {.batch_size = 6, .shuffle = false});

  learn.set_loaders(loaders);
  learn.no_logging([&] { learn.fit(1, 0.01, {.cbs = callbacks(count)}); });

  EXPECT_EQ(count->seen, sums(data.data, 6));
  EXPECT_EQ(learn.n_iter(), 4);
  struct InAPass : Callback {
    std::string_view name() const override { return "in_a_pass"; }
    void after_batch(Learner& own) override { own.set_loaders({}); }
  };
  EXPECT_NE(words_of<UsageError>([&] {
              learn.no_logging([&] { learn.fit(1, 0.01, {.cbs = callbacks(InAPass())}); });
            }).find("set_loaders inside a pass"),
            std::string::npos);
}

TEST(OtherData, BringsItsLossUnlessTheOptionsHaveOne) {
  auto loaders = data_of();
  loaders.loss = focal();
  const Learner of_data(loaders, net(), {}), own(loaders, net(), quiet());

  EXPECT_EQ(of_data.loss_func().name(), "focal");
  EXPECT_EQ(own.loss_func().name(), "cross_entropy");
}

TEST(Learner, TakesACancelThrownFromInsideAForward) {
  auto inner = net();
  int64_t calls = 0;
  const AnyModel model(inner.ptr(), [&, inner](const Tensors& inputs) mutable {
    if (inner->is_training() && ++calls == 3) throw Cancel(Scope::kBatch);
    return Tensors{inner->forward(inputs.front())};
  });
  struct Count : Callback {
    std::string_view name() const override { return "count"; }
    void after_step(Learner&) override { ++steps; }
    void after_cancel_batch(Learner& learn) override { cancelled = learn.iter(); }
    int64_t steps = 0, cancelled = -1;
  };
  const Learner learn(data_of(48), model, quiet());
  const auto count = std::make_shared<Count>();

  learn.no_logging([&] { learn.fit(1, 0.01, {.cbs = callbacks(count)}); });

  EXPECT_EQ(count->steps, 5);
  EXPECT_EQ(count->cancelled, 2);
}

TEST(Learner, ACallbackThatThrowsBehindAScopeLeavesTheOthersToPutBack) {
  struct Failing : Callback {
    explicit Failing(Event event) : where(event) {}
    std::string_view name() const override { return "failing"; }
    void before_epoch(Learner& learn) override {
      if (where == Event::kAfterCancelFit) learn.cancel(Scope::kFit);
    }
    void after_batch(Learner& learn) override { fail(learn, Event::kAfterBatch); }
    void after_cancel_fit(Learner& learn) override { fail(learn, Event::kAfterCancelFit); }
    void after_fit(Learner& learn) override { fail(learn, Event::kAfterFit); }
    void fail(const Learner& learn, Event event) const {
      if (event == where && !learn.is_unwinding()) throw std::runtime_error("no more ink");
    }
    Event where;
  };
  struct Changing : Callback {
    std::string_view name() const override { return "changing"; }
    int order() const override { return 10; }
    void before_fit(Learner&) override { changed = true; }
    void after_batch(Learner& learn) override { unwound = learn.is_unwinding(); }
    void after_fit(Learner&) override { changed = false; }
    bool changed = false, unwound = false;
  };
  for (const auto where : {Event::kAfterBatch, Event::kAfterCancelFit, Event::kAfterFit}) {
    const Learner learn(data_of(), net(), quiet());
    const auto changing = std::make_shared<Changing>();

    const auto words = words_of<Error>(
        [&] { learn.no_logging([&] { learn.fit(1, 0.01, {.cbs = callbacks(changing, Failing(where))}); }); });

    EXPECT_NE(words.find(text("callback 'failing' in ", name_of(where), ": no more ink")), std::string::npos) << words;
    EXPECT_FALSE(changing->changed) << name_of(where);
    EXPECT_EQ(changing->unwound, where == Event::kAfterBatch);
  }
}

TEST(Learner, ContextsOfCallbacksEndOnEveryWayOut) {
  const Learner learn(data_of(), net(), quiet());
  learn.add(MCDropout());

  EXPECT_THROW(learn.added_cbs(callbacks(BnFreeze()),
                               [&] {
                                 EXPECT_NE(learn.find<BnFreeze>(), nullptr);
                                 throw std::runtime_error("out");
                               }),
               std::runtime_error);
  EXPECT_THROW(learn.removed_cbs({"mc_dropout", "recorder"},
                                 [&] {
                                   EXPECT_EQ(learn.find<MCDropout>(), nullptr);
                                   EXPECT_TRUE(learn.ordered_cbs(Event::kBeforeValidate).size() == 2)
                                       << "train_eval and progress";
                                   throw std::runtime_error("out");
                                 }),
               std::runtime_error);

  EXPECT_EQ(learn.find<BnFreeze>(), nullptr);
  EXPECT_NE(learn.find<MCDropout>(), nullptr);
  EXPECT_EQ(learn.cbs().size(), 4U);
}

TEST(Learner, ANewOptimizerForgetsMomenta) {
  const auto weights_behind = [](bool reset) {
    auto model = net();
    auto options = quiet();
    options.opt_func = optim::fastai::sgd({.mom = 0.9});
    const Learner learn(data_of(48, false), model, options);
    learn.no_logging([&] {
      learn.fit(1, 0.05);
      learn.fit(1, 0.05, {.reset_opt = reset});
    });
    return state_of(*model).at("0.weight");
  };

  EXPECT_FALSE(weights_behind(true).equal(weights_behind(false)));
}

/// A factory of one of libtorch's optimizers.
template <class Optimizer, class Options>
optim::fastai::Factory libtorch(Options options) {
  return [options](const std::vector<torch::optim::OptimizerParamGroup>& groups, double lr) {
    auto own = options;
    own.lr(lr);
    return std::make_shared<Optimizer>(groups, own);
  };
}

TEST(Hypers, OfLibtorchsOptimizersHaveFastaisNames) {
  using namespace torch::optim;
  struct Case {
    const char* name;
    optim::fastai::Factory make;
    std::vector<std::string> hypers;
  };
  const std::vector<Case> cases = {
      {"SGD", libtorch<SGD>(SGDOptions(0.1).momentum(0.5)), {"lr", "mom", "wd"}},
      {"RMSprop", libtorch<RMSprop>(RMSpropOptions(0.1).momentum(0.5)), {"lr", "mom", "sqr_mom", "eps", "wd"}},
      {"Adam", libtorch<Adam>(AdamOptions(0.1)), {"lr", "mom", "sqr_mom", "eps", "wd"}},
      {"Adagrad", libtorch<Adagrad>(AdagradOptions(0.1)), {"lr", "eps", "wd"}}};
  for (const auto& one : cases) {
    auto options = quiet();
    options.opt_func = one.make;
    const Learner learn(data_of(48), net(), options);
    SCOPED_TRACE(one.name);

    EXPECT_EQ(learn.hypers().names(), one.hypers);
    learn.hypers().set("wd", 0.25);
    learn.hypers().set("lr", slice(0.01, 0.04));
    EXPECT_EQ(learn.hypers().get("lr"), (std::vector<double>{0.01, 0.04}));
    // Biases and norm layers do not decay: of each layer group one group of the optimizer does, and one does not.
    std::vector<double> decays;
    for (const auto& group : learn.opt().param_groups()) decays.push_back(*read_hyper(group.options(), "wd"));
    EXPECT_EQ(decays, (std::vector<double>{0.25, 0, 0.25, 0}));
    learn.no_logging([&] { learn.fit_one_cycle(1, 0.01); });
    if (learn.hypers().has("mom")) {
      EXPECT_GT(learn.hypers().get("mom").front(), 0.9) << "the cycle's end";
    }
  }
  EXPECT_NE(words_of<UsageError>([&] {
              auto options = quiet();
              options.opt_func = cases[3].make;
              const Learner learn(data_of(48), net(), options);
              learn.hypers().set("mom", 0.9);
            }).find("has no hyper-parameter 'mom'"),
            std::string::npos);
}

TEST(Learner, RefusesAModelOnAnotherDevice) {
  auto options = quiet();
  options.accelerator = Accelerator(process::Process(process::RankInfo{}, comm::Group()), {.device_placement = false});
  options.splitter = one_group();
  struct Elsewhere : torch::nn::Module {
    Elsewhere() { weight = register_parameter("weight", at::zeros({6, 3}, at::kMeta)); }
    at::Tensor forward(const at::Tensor& x) { return x.matmul(weight); }
    at::Tensor weight;
  };
  const Learner learn(data_of(), std::make_shared<Elsewhere>(), options);

  const auto words = words_of<UsageError>([&] { learn.no_logging([&] { learn.fit(1, 0.01); }); });

  EXPECT_NE(words.find("'weight' is on the meta device"), std::string::npos) << words;
}

TEST_F(EvaluationFiles, LoadSaysWhatIsMissing) {
  auto options = quiet(folder_);
  options.splitter = one_group();
  const Learner learn(data_of(), net(), options),
      shorter(data_of(), torch::nn::Sequential(torch::nn::Linear(6, 3)), options);
  learn.save("without", false);

  EXPECT_NE(words_of<DataError>([&] { learn.load("nothing"); }).find("nothing"), std::string::npos);
  EXPECT_NE(words_of<DataError>([&] { learn.load("without", {.with_opt = true}); }).find("no optimizer state beside"),
            std::string::npos);
  shorter.save("part");
  EXPECT_THROW(learn.load("part"), UsageError);
}

}  // namespace
}  // namespace hasten::learner
