// The Learner against values recorded from fastai 2.8.12: every family of learner.json, judged in one place; training,
// accumulation, predictions and what several ranks gather are here, the other families in the files that
// golden_families.h names.
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <numeric>
#include <set>

#include "hasten/learner/callbacks.h"
#include "hasten/learner/distributed.h"
#include "hasten/learner/metrics.h"
#include "hasten/learner/recorder.h"
#include "learner/golden_families.h"
#include "support/ranks.h"

namespace hasten::testing {

using namespace learner;

namespace {

/// Indices of linears whose bias a batch norm takes out again.
std::vector<size_t> linears_before_batch_norm(const json& layers) {
  std::vector<size_t> found;
  for (size_t i = 0; i + 1 < layers.size(); ++i) {
    if (layers[i].at("type") == "Linear" && layers[i + 1].at("type") == "BatchNorm1d") found.push_back(i);
  }
  return found;
}

std::vector<std::string> noisy_names(const json& layers) {
  std::vector<std::string> names;
  for (const size_t i : linears_before_batch_norm(layers)) {
    names.push_back(std::to_string(i) + ".bias");
    names.push_back(std::to_string(i + 1) + ".running_mean");
  }
  return names;
}

/// The last epoch's validation from the recorded bias and running mean, which are noise in both runs: what follows from
/// them is judged.
void validate_with_recorded_noise(const GoldenCase& golden, const Learner& learn, const torch::nn::Module& model,
                                  json& each, json& values) {
  const auto names = noisy_names(golden.input.at("model").at("layers"));
  if (names.empty() || !golden.expected.is_object() || !golden.expected.contains("state")) return;
  const at::NoGradGuard no_grad;
  auto tensors = model.named_parameters();
  for (const auto& item : model.named_buffers()) tensors.insert(item.key(), item.value());
  for (const auto& name : names) tensors[name].copy_(tensor_of(golden.expected.at("state").at(name)));
  const size_t before = each.size();
  const auto row = learn.validate();
  const size_t batches = each.size() - before;
  for (size_t i = 0; i < batches; ++i) each[before - batches + i] = each[before + i];
  each.erase(each.begin() + static_cast<std::ptrdiff_t>(before), each.end());
  if (values.empty()) return;
  auto& last = values.back();
  for (size_t i = 0; i < row.size(); ++i) last.at(last.size() - row.size() + i) = row[i];
}

json training(const GoldenCase& golden) {
  const auto& input = golden.input;
  const auto model = model_of(input.at("model"));
  const auto& o = input.at("options");
  Splitter splitter = one_group();
  if (!input.at("groups").is_null()) {
    std::vector<size_t> firsts;
    for (const auto& range : input.at("groups")) firsts.push_back(range.at(0).get<size_t>());
    splitter = child_groups(firsts);
  }
  std::vector<Metric> list;
  for (const auto& name : input.at("metrics")) list.push_back(metric_named(name));
  std::optional<double> wd;
  if (o.contains("wd")) wd = o.at("wd").get<double>();
  // Member by member: where an initializer of an aggregate throws, g++ 12 destroys what it has made twice.
  LearnerOptions options{.metrics = list, .splitter = splitter, .wd = wd};
  options.loss = loss_of(input.at("loss"));
  options.opt_func = optimizer_of(input.at("optimizer"));
  options.wd_bn_bias = o.value("wd_bn_bias", false);
  options.train_bn = o.value("train_bn", true);
  Learner learn(loaders_of(input), model, options);
  learn.recorder().options().add_time = false;
  learn.recorder().options().train_metrics = o.value("train_metrics", false);
  if (o.contains("clip")) learn.add(GradientClip(o.at("clip").get<double>()));
  json each = json::array();
  learn.add(std::make_shared<Every>("looking", 90, [&](Learner& own, Event event) {
    if (event == Event::kAfterBatch) each.push_back({own.training() ? 1 : 0, own.loss().item<double>()});
  }));
  if (o.contains("freeze")) learn.freeze_to(o.at("freeze").get<int64_t>());
  learn.no_logging([&] {
    const auto epochs = input.at("epochs").get<int64_t>();
    const auto lr = hyper_of(o.contains("lr") ? o.at("lr") : input.at("lr"));
    if (o.value("one_cycle", false))
      learn.fit_one_cycle(epochs, lr);
    else
      learn.fit(epochs, lr);
  });
  json values = json::array(), state = json::object();
  for (const auto& row : learn.recorder().values()) values.push_back(json_of(row));
  for (const auto& one : model->named_parameters()) state[one.key()] = json_of(one.value().detach());
  for (const auto& one : model->named_buffers()) state[one.key()] = json_of(one.value());
  const auto smooth = json_of(learn.recorder().losses());
  const auto names = learn.recorder().metric_names();
  validate_with_recorded_noise(golden, learn, *model, each, values);
  return {{"losses", each}, {"smooth", smooth}, {"names", names}, {"values", values}, {"state", state}};
}

json accumulation(const GoldenCase& golden) {
  const auto& input = golden.input;
  OneWeight model;
  {
    const at::NoGradGuard no_grad;
    model->weight.fill_(input.at("weight").get<double>());
  }
  const auto x = tensor_of(input.at("x")).unsqueeze(1);
  auto loaders = tensor_loaders({x, x}, {x, x},
                                {.batch_size = input.at("batch_size").get<int64_t>(),
                                 .shuffle = false,
                                 .drop_last = input.value("drop_last", false)});
  loaders.valid = {};
  Learner learn(
      loaders, model,
      {.loss = [](const at::Tensor& p, const at::Tensor&) { return p.mean(); }, .opt_func = optim::fastai::sgd()});
  learn.add(GradientAccumulation(GradientAccumulationOptions{.n_acc = input.at("n_acc"), .as_fastai = true}));
  if (!input.at("clip").is_null()) learn.add(GradientClip(input.at("clip").get<double>()));
  json weights = json::array(), stepped = json::array();
  learn.add(std::make_shared<Every>("looking", 90, [&](Learner& own, Event event) {
    if (event == Event::kAfterStep) stepped.push_back(own.train_iter());
    if (event == Event::kAfterBatch && own.training()) weights.push_back(model->weight.item<float>());
  }));
  learn.no_logging([&] { learn.fit(input.at("epochs").get<int64_t>(), input.at("lr").get<double>()); });
  const auto& left = model->weight.grad();
  return {{"weights", weights}, {"stepped_at", stepped}, {"left_in_grad", left.defined() ? left.item<double>() : 0.0}};
}

json predictions(const GoldenCase& golden) {
  const auto& input = golden.input;
  const auto loss = loss_of(input.at("loss"));
  Learner learn(loaders_of(input), model_of(input.at("model")), {.loss = loss, .metrics = {accuracy()}});
  const auto& o = input.at("options");
  PredsOptions options;
  options.ds_idx = o.value("ds_idx", 1);
  options.with_input = o.value("with_input", false);
  options.with_decoded = o.value("with_decoded", false);
  options.with_loss = o.value("with_loss", false);
  options.with_preds = o.value("with_preds", true);
  options.with_targs = o.value("with_targs", true);
  if (o.contains("act") && !o.at("act").is_null()) options.act = [](const at::Tensor& t) { return t; };
  const auto found = learn.get_preds(options);
  json parts = json::array();
  for (const auto& part : {found.inputs, found.preds, found.targets, found.decoded, found.losses}) {
    if (part.defined()) parts.push_back(json_of(part));
  }
  return {{"parts", parts}, {"validate", json_of(learn.validate())}};
}

json distributed_dl(const GoldenCase& golden) {
  const auto& input = golden.input;
  const auto n = input.at("n").get<int64_t>();
  const int world = input.at("world_size");
  json ranks = json::array(), lengths = json::array();
  const auto rows = at::arange(n);
  auto options = torch::data::DataLoaderOptions(input.at("batch_size").get<size_t>());
  options.drop_last(input.at("drop_last").get<bool>());
  const auto whole =
      data::loader(data::TensorDataset(rows), data::SeedableSequentialSampler(static_cast<size_t>(n)), options);
  for (int rank = 0; rank < world; ++rank) {
    const DistributedDL loader(whole, rank, world);
    json batches = json::array();
    for (auto& batch : loader) batches.push_back(json_of(batch));
    ranks.push_back(batches);
    lengths.push_back(loader.size());
  }
  return {{"ranks", ranks}, {"len", lengths}};
}

/// fastai's blocks, step by step and without padding; and what get_preds gives, in the dataset's order.
json gather(const GoldenCase& golden) {
  const auto& input = golden.input;
  const auto n = input.at("n").get<int64_t>(), batch_size = input.at("batch_size").get<int64_t>();
  const int world = input.at("world_size");
  json steps, in_order;
  std::mutex guard;
  run_ranks(world, [&](process::Process& process) {
    const Accelerator accelerator(process);
    const auto rows = at::arange(n);
    const auto options = torch::data::DataLoaderOptions(static_cast<size_t>(batch_size));
    const auto whole =
        data::loader(data::TensorDataset(rows), data::SeedableSequentialSampler(static_cast<size_t>(n)), options);
    const int64_t block = (n + world - 1) / world;
    int64_t left = std::clamp<int64_t>(n - process.rank() * block, 0, block);
    json own = json::array();
    for (auto& batch : DistributedDL(whole, process.rank(), world)) {
      const auto valid = std::min<int64_t>(left, batch.size(0));
      left -= valid;
      const auto all = gather_rows(process.group(), batch.slice(0, 0, valid));
      own.push_back(json_of(all));
    }
    const auto x = rows.unsqueeze(1).to(at::kFloat);
    OneWeight model;
    {
      const at::NoGradGuard no_grad;
      model->weight.fill_(1);
    }
    const Learner learn(
        {.train = ones(1), .valid = tensor_loader(x, rows, {.batch_size = batch_size, .shuffle = false})}, model,
        {.loss = mse()});
    json predicted;
    learn.distrib_ctx(accelerator, [&] { predicted = json_of(learn.get_preds().preds.reshape({-1}).to(at::kLong)); });
    const std::lock_guard lock(guard);
    EXPECT_TRUE(steps.is_null() || steps == own) << golden.name;
    EXPECT_TRUE(in_order.is_null() || in_order == predicted) << golden.name;
    steps = own;
    in_order = predicted;
  });
  std::vector<int64_t> wanted(static_cast<size_t>(n));
  std::iota(wanted.begin(), wanted.end(), int64_t{0});
  EXPECT_EQ(in_order, json(wanted)) << golden.name;
  return {{"gathered", steps}, {"gathered_in_order", in_order}};
}

/// Our rule: len is what is given.
json counted_batches(const GoldenCase& golden) {
  json lengths = json::array();
  for (const auto& batches : golden.expected.at("ranks")) lengths.push_back(batches.size());
  return {{"len", lengths}};
}

/// The gradient of a linear's bias in front of a batch norm is 0 but for rounding, and optimizers with a second moment
/// move by its sign: each run takes a path of its own. With T steps at rate lr both the bias and the running mean,
/// which follows it, end within 2 * lr * T of the recorded ones (each run moves by at most lr a step, Lamb's factor of
/// up to 10 aside). Validations before the last epoch depend on the noise of their time, which is not recorded; the
/// last one is judged from the recorded noise.
json noise_before_batch_norm(const GoldenCase& golden, const json& given) {
  json patch = json::object();
  if (golden.family != "fit" || !given.contains("state")) return patch;
  const auto names = noisy_names(golden.input.at("model").at("layers"));
  if (names.empty()) return patch;
  auto state = golden.expected.at("state"), losses = golden.expected.at("losses"),
       values = golden.expected.at("values");
  const auto steps = std::count_if(losses.begin(), losses.end(), [](const json& row) { return row.at(0) == 1; });
  const auto& optimizer = golden.input.at("optimizer");
  // RMSProp's first step divides by a tenth of the gradient. Momentum adds up to 1 / (1 - mom) steps.
  const double factor = optimizer.at("type") == "Lamb"      ? 10
                        : optimizer.at("type") == "RMSProp" ? 10 / (1 - optimizer.value("mom", 0.0))
                                                            : 1;
  const auto& o = golden.input.at("options");
  const double rate = largest(o.contains("lr") ? o.at("lr") : golden.input.at("lr"));
  const double reach = 2 * factor * rate * static_cast<double>(steps);
  for (const auto& name : names) state[name] = snapped(state[name], given.at("state").at(name), reach);
  const size_t epochs = values.size();
  if (epochs == 0) return {{"state", state}};
  const size_t batches = (losses.size() - static_cast<size_t>(steps)) / epochs;
  for (size_t i = 0; i + batches < losses.size(); ++i) {
    if (losses[i].at(0) == 0) losses[i] = given.at("losses").at(i);
  }
  const size_t validated = golden.input.at("metrics").size() + 1;
  for (size_t row = 0; row + 1 < epochs; ++row) {
    for (size_t i = values[row].size() - validated; i < values[row].size(); ++i)
      values[row][i] = given.at("values").at(row).at(i);
  }
  return {{"state", state}, {"losses", losses}, {"values", values}};
}

const std::map<std::string, Outcome> kFamilies = {{"events", golden_events},
                                                  {"calls", golden_calls},
                                                  {"order", golden_order},
                                                  {"schedule", golden_schedule},
                                                  {"fit_one_cycle", golden_fits},
                                                  {"fit_flat_cos", golden_fits},
                                                  {"fit_sgdr", golden_fits},
                                                  {"fine_tune", golden_fits},
                                                  {"hypers", golden_hypers},
                                                  {"freeze", golden_freeze},
                                                  {"suggest", golden_suggestion},
                                                  {"lr_find", golden_lr_finder},
                                                  {"tracker", golden_tracker},
                                                  {"fit", training},
                                                  {"accumulation", accumulation},
                                                  {"metrics", golden_metrics},
                                                  {"losses", golden_losses},
                                                  {"mix", golden_mix},
                                                  {"get_preds", predictions},
                                                  {"distributed_dl", distributed_dl},
                                                  {"gather", gather}};

const std::set<std::string> kSchedules = {"schedule", "fit_one_cycle", "fit_flat_cos", "fit_sgdr", "fine_tune"};

/// Losses of a range test that diverges: each rounding grows with the loss.
json near_diverging(const json& given, const json& wanted) {
  if (!given.is_array() || !wanted.is_array()) return given;
  const auto losses = wanted.get<std::vector<double>>();
  if (losses.empty() || losses.back() < 4 * *std::min_element(losses.begin(), losses.end())) return given;
  json result = given;
  for (size_t i = 0; i < std::min(given.size(), wanted.size()); ++i)
    result[i] = snapped(given[i], wanted[i], 1e-4 * std::abs(losses[i]));
  return result;
}

/// Within the tolerances of the golden README, values count as the recorded ones.
json near_recorded(const GoldenCase& golden, json given) {
  if (!given.is_object()) return given;
  for (const json* wanted : {&golden.expected, &golden.fixed}) {
    if (!wanted->is_object()) continue;
    for (const auto& [key, value] : wanted->items()) {
      if (!given.contains(key)) continue;
      const double scale = kSchedules.count(golden.family) != 0 ? 1e-6 * std::max(largest(value), 1e-12)
                           : golden.family == "suggest" || golden.family == "hypers" ? 1e-6 * largest(value)
                           : golden.family == "lr_find" && key != "losses"           ? 1e-6 * largest(value)
                           : golden.family == "fit"                                  ? 1e-5
                                                                                     : 2e-6;
      given[key] = snapped(given[key], value, scale);
      if (golden.family == "lr_find" && key == "losses") given[key] = near_diverging(given[key], value);
    }
  }
  return given;
}

TEST(LearnerGolden, GivesWhatFastaiGives) {
  GoldenTopic topic("learner");
  topic.on_quirk("cancel-escapes", unwound);
  topic.on_quirk("after-fit-not-called", unwound);
  topic.on_quirk("run-after-ignored", without_cast);
  topic.on_quirk("float32-position", sgdr_in_double);
  topic.on_quirk("no-best-to-load", kept_the_last);
  topic.on_quirk("mean-of-batch-means", over_pixels);
  topic.on_quirk("unclear-error", short_curve);
  topic.on_quirk("len-differs", counted_batches);
  json given;
  topic.on_every_case([&given](const GoldenCase& golden) { return noise_before_batch_norm(golden, given); });
  topic.on_every_case(
      [](const GoldenCase& golden) { return golden.family == "freeze" ? beyond_is_refused(golden) : json::object(); });
  topic.tolerate({.relative = 1e-6, .absolute = 2e-6});

  topic.for_each([&](const GoldenCase& golden) {
    try {
      const auto family = kFamilies.find(golden.family);
      given = family == kFamilies.end() ? json{{"unknown family", golden.family}}
                                        : near_recorded(golden, family->second(golden));
    } catch (const UsageError&) {
      given = {{"refused", true}};
    } catch (const std::exception& error) {
      given = {{"exception", error.what()}};
    }
    if (given.contains("refused")) {
      // A refusal stands for the class of error that the case has.
      const bool wants_error = golden.expected.is_object() && golden.expected.value("error", json()).is_string();
      given = wants_error ? golden_error(golden.expected.at("error")) : json{{"error", "refused"}};
    }
    topic.judge(golden, given);
  });

  topic.finish();
}

}  // namespace
}  // namespace hasten::testing
