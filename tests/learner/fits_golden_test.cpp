// Golden cases of the fits: rates and momenta, slices, freezing, suggestions, lr_find.
#include <gtest/gtest.h>

#include <map>
#include <numbers>
#include <set>

#include "hasten/learner/callbacks.h"
#include "hasten/learner/distributed.h"
#include "hasten/learner/metrics.h"
#include "hasten/learner/recorder.h"
#include "learner/golden_families.h"

namespace hasten::testing {

using namespace learner;

/// A chain of Linear(1, 1), one a layer group.
static Learner group_learner(const json& input, const std::function<void(Learner&)>& after_batch) {
  const auto groups = input.value("groups", 1);
  torch::nn::Sequential net;
  std::vector<size_t> firsts;
  for (int i = 0; i < groups; ++i) {
    net->push_back(torch::nn::Linear(1, 1));
    firsts.push_back(static_cast<size_t>(i));
  }
  const auto lr = input.value("learner_lr", 1e-3);
  const Loader train = ones(input.value("batches", 1));
  Learner learn({.train = train}, net, {.loss = mse(), .lr = lr, .splitter = child_groups(firsts)});
  learn.add(std::make_shared<Every>("after", 100, [after_batch](Learner& own, Event event) {
    if (event == Event::kAfterBatch && own.training()) after_batch(own);
  }));
  return learn;
}

json golden_fits(const GoldenCase& golden) {
  const auto& input = golden.input;
  json lr = json::array(), mom = json::array(), pct = json::array(), trains = json::array();
  const auto learn = group_learner(input, [&](Learner& own) {
    lr.push_back(json_of(own.hypers().get("lr")));
    mom.push_back(json_of(own.hypers().get("mom")));
    pct.push_back(own.pct_train());
    json each = json::array();
    for (const auto& group : own.groups()) {
      each.push_back(std::any_of(group.parameters.begin(), group.parameters.end(),
                                 [](const auto& p) { return p.requires_grad(); }));
    }
    trains.push_back(each);
  });
  const auto epochs = input.at("epochs").get<int64_t>();
  const auto number = [&](const char* key, double otherwise) { return input.value(key, otherwise); };
  const auto rate = [&](const char* key) {
    return input.contains(key) && !input.at(key).is_null() ? std::optional(hyper_of(input.at(key))) : std::nullopt;
  };
  std::optional<std::array<double, 3>> moms;
  if (input.contains("moms") && !input.at("moms").is_null()) moms = input.at("moms").get<std::array<double, 3>>();
  std::optional<double> wd;
  if (input.contains("wd") && !input.at("wd").is_null()) wd = input.at("wd").get<double>();
  const auto start = input.value("start_epoch", int64_t{0});
  learn.no_logging([&] {
    const auto call = input.at("call").get<std::string>();
    if (call == "fit_one_cycle") {
      learn.fit_one_cycle(epochs, rate("lr_max"),
                          {.div = number("div", 25),
                           .div_final = number("div_final", 1e5),
                           .pct_start = number("pct_start", 0.25),
                           .wd = wd,
                           .moms = moms,
                           .start_epoch = start});
    } else if (call == "fit_flat_cos") {
      learn.fit_flat_cos(epochs, rate("lr"),
                         {.div_final = number("div_final", 1e5),
                          .pct_start = number("pct_start", 0.75),
                          .wd = wd,
                          .start_epoch = start});
    } else if (call == "fit_sgdr") {
      learn.fit_sgdr(epochs, input.value("cycle_len", 1), rate("lr_max"),
                     {.cycle_mult = input.value("cycle_mult", 2), .wd = wd});
    } else if (call == "fine_tune") {
      learn.fine_tune(epochs, number("base_lr", 2e-3),
                      {.freeze_epochs = input.value("freeze_epochs", 1),
                       .lr_mult = number("lr_mult", 100),
                       .pct_start = number("pct_start", 0.3),
                       .div = number("div", 5),
                       .wd = wd,
                       .moms = moms});
    } else {
      lr = "unknown call";
    }
  });
  return {{"lr", lr}, {"mom", mom}, {"pct", pct}, {"trains", trains}};
}

/// Positions in double: an SGDR cycle begins at its batch, and not a rounding later.
json sgdr_in_double(const GoldenCase& golden) {
  const auto& input = golden.input;
  if (golden.family != "fit_sgdr") return json::object();
  const auto batches = input.at("batches").get<int64_t>();
  json lr = json::array();
  int64_t length = input.value("cycle_len", int64_t{1});
  const auto top =
      input.at("lr_max").is_array() ? input.at("lr_max").at(1).get<double>() : input.at("lr_max").get<double>();
  const auto groups = input.value("groups", 1);
  for (int64_t cycle = 0; cycle < input.at("epochs").get<int64_t>();
       ++cycle, length *= input.value("cycle_mult", int64_t{2})) {
    for (int64_t i = 0; i < length * batches; ++i) {
      const double part = static_cast<double>(i) / static_cast<double>(length * batches);
      lr.push_back(std::vector<double>(static_cast<size_t>(groups), top * (1 + std::cos(std::numbers::pi * part)) / 2));
    }
  }
  return {{"lr", lr}};
}

json golden_hypers(const GoldenCase& golden) {
  const auto learn = group_learner(golden.input, [](Learner&) {});
  const auto& value = golden.input.at("value");
  const auto kind = golden.input.at("kind").get<std::string>();
  try {
    if (kind == "slice")
      learn.hypers().set("lr", hyper_of(value));
    else if (value.is_array())
      learn.hypers().set("lr", value.get<std::vector<double>>());
    else
      learn.hypers().set("lr", value.get<double>());
  } catch (const UsageError&) {
    return golden_error("AssertionError");
  }
  return {{"lr", json_of(learn.hypers().get("lr"))}};
}

/// A Sequential that can lie in another one.
struct PairImpl : torch::nn::SequentialImpl {
  using SequentialImpl::SequentialImpl;
  at::Tensor forward(const at::Tensor& x) { return SequentialImpl::forward(x); }
};
TORCH_MODULE(Pair);

json golden_freeze(const GoldenCase& golden) {
  const auto& input = golden.input;
  torch::nn::Sequential net;
  std::vector<size_t> firsts;
  for (int i = 0; i < input.at("groups").get<int>(); ++i) {
    net->push_back(Pair(torch::nn::Linear(2, 2), torch::nn::BatchNorm1d(2)));
    firsts.push_back(static_cast<size_t>(i));
  }
  const auto train_bn = input.value("train_bn", true);
  Learner learn({.train = ones(1)}, net, {.loss = mse(), .splitter = child_groups(firsts), .train_bn = train_bn});
  try {
    learn.freeze_to(input.at("freeze_to").get<int64_t>());
  } catch (const UsageError&) {
    return {{"refused", true}};
  }
  json grads = json::object();
  for (const auto& parameter : net->named_parameters()) grads[parameter.key()] = parameter.value().requires_grad();
  return {{"frozen_idx", learn.frozen_groups()}, {"requires_grad", grads}};
}

/// Our rule: freezing beyond the groups is refused (fastai freezes all and prints a line).
json beyond_is_refused(const GoldenCase& golden) {
  const auto groups = golden.input.at("groups").get<int64_t>(), n = golden.input.at("freeze_to").get<int64_t>();
  return n > groups || n < -groups ? json{{"error", "refused"}} : json::object();
}

static json suggestions_of(const std::vector<double>& lrs, const std::vector<double>& losses) {
  json result = json::object();
  for (const auto how : {Suggestion::kValley, Suggestion::kSlide, Suggestion::kMinimum, Suggestion::kSteep}) {
    try {
      result[name_of(how)] = suggest(how, lrs, losses);
    } catch (const UsageError&) {
      result[name_of(how)] = golden_error("UsageError");
    }
  }
  return result;
}

static std::vector<double> doubles_of(const json& list) {
  std::vector<double> values;
  flatten(list, values);
  return values;
}

json golden_suggestion(const GoldenCase& golden) {
  return suggestions_of(doubles_of(golden.input.at("lrs")), doubles_of(golden.input.at("losses")));
}

static std::vector<at::Tensor> copies(const torch::nn::Module& module) {
  std::vector<at::Tensor> result;
  for (const auto& one : module.parameters()) result.push_back(one.detach().clone());
  for (const auto& one : module.buffers()) result.push_back(one.clone());
  return result;
}

json golden_lr_finder(const GoldenCase& golden) {
  const auto& input = golden.input;
  const auto model = model_of(input.at("model"));
  const auto loss = loss_of(input.at("loss"));
  const auto optimizer = optimizer_of(input.at("optimizer"));
  Learner learn(loaders_of(input), model, {.loss = loss, .opt_func = optimizer});
  const auto before = copies(*model);
  const auto& o = input.at("options");
  LrFindOptions options{.suggest = {}};
  options.start_lr = o.value("start_lr", 1e-7);
  options.end_lr = o.value("end_lr", 10.0);
  options.num_it = o.value("num_it", 100);
  options.stop_div = o.value("stop_div", true);
  const auto found = learn.lr_find(options);
  const auto after = copies(*model);
  bool restored = true;
  for (size_t i = 0; i < before.size(); ++i) restored = restored && before[i].equal(after[i]);
  json suggestions;
  try {
    auto all = options;
    all.suggest = {Suggestion::kValley, Suggestion::kSlide, Suggestion::kMinimum, Suggestion::kSteep};
    suggestions = learn.lr_find(all).suggestions;
  } catch (const UsageError&) {
    suggestions = golden_error("UsageError");
  }
  return {{"lrs", json_of(found.lrs)},
          {"losses", json_of(found.losses)},
          {"suggestions", suggestions},
          {"restored", restored}};
}

/// Our rule: too short a curve is a UsageError.
json short_curve(const GoldenCase& golden) {
  if (golden.family == "lr_find") return {{"suggestions", golden_error("UsageError")}};
  json patch = json::object();
  for (const auto& [name, value] : golden.expected.items()) {
    if (value.is_object() && value.contains("error")) patch[name] = golden_error("UsageError");
  }
  return patch;
}

}  // namespace hasten::testing
