// See recorder.h.
#include "hasten/learner/recorder.h"

#include <ATen/ATen.h>

#include <cmath>
#include <iomanip>
#include <limits>

#include "hasten/core/sentence.h"
#include "hasten/learner/learner.h"

namespace hasten::learner {
namespace {

std::string cell(const std::string& content) {
  return content + std::string(content.size() < 12 ? 12 - content.size() : 1, ' ');
}

std::string minutes(double seconds) {
  const auto whole = static_cast<int64_t>(seconds);
  return text(std::setfill('0'), std::setw(2), whole / 60, ":", std::setw(2), whole % 60);
}

}  // namespace

void SmoothLoss::reset() {
  value_ = 0;
  device_value_ = at::Tensor();
  count_ = 0;
  history_.clear();
  pending_.clear();
}

double SmoothLoss::debiased(double value, int64_t count) const {
  return value / (1 - std::pow(beta_, static_cast<double>(count)));
}

void SmoothLoss::update(const at::Tensor& loss) {
  ++count_;
  if (loss.is_cpu()) {
    const float now = loss.numel() == 1 ? loss.item<float>() : loss.mean().item<float>();
    const auto weight = static_cast<float>(beta_);
    // The two forms of at::lerp, for equal bits.
    value_ = weight < 0.5F ? now + weight * (value_ - now) : value_ - (value_ - now) * (1 - weight);
    history_.push_back(static_cast<float>(debiased(value_, count_)));
    return;
  }
  const auto mean = loss.numel() == 1 ? loss.reshape({}).to(at::kFloat) : loss.mean().to(at::kFloat);
  device_value_ = mean.lerp(device_value_.defined() ? device_value_ : at::zeros_like(mean), beta_);
  pending_.push_back(device_value_);
}

const std::vector<double>& SmoothLoss::history() const {
  if (!pending_.empty()) {
    const auto values = at::stack(pending_).cpu();
    for (int64_t i = 0; i < values.numel(); ++i) {
      const auto count = static_cast<int64_t>(history_.size()) + 1;
      history_.push_back(static_cast<float>(debiased(values.const_data_ptr<float>()[i], count)));
    }
    pending_.clear();
  }
  return history_;
}

double SmoothLoss::value() const {
  return history().empty() ? std::numeric_limits<double>::quiet_NaN() : history_.back();
}

core::Value SmoothLoss::state() const {
  const double raw = device_value_.defined() ? device_value_.item<double>() : static_cast<double>(value_);
  return core::Value::map({{"value", raw}, {"count", count_}, {"history", core::Value(history())}});
}

void SmoothLoss::load_state(const core::Value& state) {
  reset();
  value_ = static_cast<float>(state.at("value").as_double());
  count_ = state.at("count").as_int();
  for (const auto& one : state.at("history").as_list()) history_.push_back(one.as_double());
}

Recorder& Learner::recorder() const {
  auto* found = find<Recorder>();
  if (found == nullptr)
    throw UsageError(Origin{"learner"},
                     "this Learner has no Recorder; add learner::Recorder(), or leave default_cbs on.");
  return *found;
}

void Recorder::before_fit(Learner& learn) {
  lrs_.clear();
  iters_.clear();
  values_.clear();
  row_.clear();
  smooth_.reset();
  warned_ = false;
  group_ = learn.accelerator().group();
  in_training_ = resumed_ = false;
  const auto& metrics = learn.options().metrics;
  train_ = options_.train_metrics ? metrics : std::vector<Metric>{};
  valid_ = {avg_loss("loss")};
  train_sums_.reset();
  valid_sums_.reset();
  if (options_.valid_metrics) valid_.insert(valid_.end(), metrics.begin(), metrics.end());
  const bool both = options_.train_metrics && options_.valid_metrics;
  names_ = {"epoch", "train_loss"};
  for (const auto& metric : train_) names_.push_back((both ? "train_" : "") + metric.name());
  names_.emplace_back("valid_loss");
  for (size_t i = 1; i < valid_.size(); ++i) names_.push_back((both ? "valid_" : "") + valid_[i].name());
  std::string line;
  for (const auto& name : names_) line += cell(name);
  learn.log(line + (options_.add_time ? "time" : ""));
}

void Recorder::before_epoch(Learner& /*learn*/) {
  start_ = std::chrono::steady_clock::now();
  row_.clear();
  first_of_epoch_ = static_cast<int64_t>(lrs_.size());
}

void Recorder::before_train(Learner& /*learn*/) {
  for (const auto& metric : train_) metric.reset();
  if (!std::exchange(resumed_, false)) train_sums_.set_earlier({});
  in_training_ = true;
}

void Recorder::before_validate(Learner& /*learn*/) {
  for (const auto& metric : valid_) metric.reset();
}

void Recorder::accumulate(Learner& learn, const std::vector<Metric>& metrics) const {
  if (metrics.empty() || learn.predictions().empty()) return;
  const auto& accelerator = learn.accelerator();
  MetricInput input{.prediction = learn.predictions().front(), .loss = learn.loss()};
  if (!learn.targets().empty()) input.target = learn.targets().front();
  input.size = learn.inputs().empty() || learn.inputs().front().dim() == 0 ? 1 : learn.inputs().front().size(0);
  const auto rows = accelerator.without_padding(learn.inputs().front()).size(0);
  if (rows != input.size) {
    if (rows == 0) return;
    input.prediction = input.prediction.slice(0, 0, rows);
    if (input.target.defined()) input.target = input.target.slice(0, 0, rows);
    input.size = rows;
    const at::NoGradGuard no_grad;
    if (input.target.defined() && learn.loss_func()) input.loss = learn.loss_func()(input.prediction, input.target);
  }
  for (const auto& metric : metrics) metric.accumulate(input);
}

void Recorder::after_batch(Learner& learn) {
  if (learn.is_unwinding()) return;
  if (!learn.training()) return accumulate(learn, valid_);
  if (!learn.loss().defined()) return;
  smooth_.update(learn.loss());
  lrs_.push_back(learn.hypers().last("lr"));
  accumulate(learn, train_);
}

void Recorder::add_values(Learner& learn, const std::vector<Metric>& metrics, MetricValues& values) {
  if (metrics.empty()) return;
  const auto found = values(metrics, learn.accelerator().group());
  row_.insert(row_.end(), found.begin(), found.end());
}

void Recorder::after_train(Learner& learn) {
  in_training_ = false;
  if (learn.is_unwinding()) return;
  row_.push_back(smooth_.value());
  add_values(learn, train_, train_sums_);
}

void Recorder::after_validate(Learner& learn) {
  if (!learn.is_unwinding()) add_values(learn, valid_, valid_sums_);
}

void Recorder::warn_of_nan(Learner& learn) {
  if (warned_) return;
  const auto& losses = smooth_.history();
  for (size_t i = static_cast<size_t>(first_of_epoch_); i < losses.size(); ++i) {
    if (std::isfinite(losses[i])) continue;
    learn.accelerator().logger("learner").warning(
        text("the loss is ", std::isnan(losses[i]) ? std::abs(losses[i]) : losses[i], " since batch ",
             i - static_cast<size_t>(first_of_epoch_), " of epoch ", learn.epoch(),
             "; training goes on. Add TerminateOnNaN to stop there."));
    warned_ = true;
    return;
  }
}

void Recorder::after_epoch(Learner& learn) {
  if (learn.is_unwinding() || row_.empty()) return;
  iters_.push_back(static_cast<int64_t>(lrs_.size()));
  warn_of_nan(learn);
  values_.push_back(row_);
  if (!learn.logs()) return;
  // A validation alone has no training columns.
  const size_t missing = names_.size() - 1 - std::min(names_.size() - 1, row_.size());
  std::string line = cell(text(learn.epoch()));
  for (size_t i = 0; i < missing; ++i) line += cell("");
  for (const double value : row_) line += cell(text(std::fixed, std::setprecision(6), value));
  learn.log(line + (options_.add_time ? minutes(epoch_seconds()) : ""));
}

double Recorder::epoch_seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

std::vector<std::string> Recorder::columns() const {
  return {names_.begin() + (names_.empty() ? 0 : 1), names_.end()};
}

double Recorder::value_of(std::string_view name) const {
  const auto known = columns();
  for (size_t i = 0; i < known.size(); ++i) {
    // A row without training columns ends at the same column.
    const size_t skipped = known.size() - std::min(known.size(), row_.size());
    if (known[i] == name && i >= skipped) return row_[i - skipped];
  }
  throw UsageError(Origin{"learner"}, "no column '", name, "' in the last row", guess_end(name, known),
                   " Columns: ", join(known), ".");
}

core::Value Recorder::state() const {
  auto rows = core::Value::list();
  for (const auto& row : values_) rows.push_back(core::Value(row));
  auto value = core::Value::map({{"smooth", smooth_.state()},
                                 {"lrs", core::Value(lrs_)},
                                 {"iters", core::Value(iters_)},
                                 {"values", std::move(rows)},
                                 {"warned", warned_}});
  if (in_training_ && !train_.empty()) {
    auto counts = core::Value::list();
    for (const auto& one : train_sums_.sums(train_, group_)) {
      const auto* from = one.defined() ? one.const_data_ptr<int64_t>() : nullptr;
      counts.push_back(core::Value(std::vector<int64_t>(from, from + (one.defined() ? one.numel() : 0))));
    }
    value["train_counts"] = std::move(counts);
  }
  return value;
}

void Recorder::load_state(const core::Value& state) {
  const auto doubles = [](const core::Value& list) {
    std::vector<double> result;
    for (const auto& one : list.as_list()) result.push_back(one.as_double());
    return result;
  };
  smooth_.load_state(state.at("smooth"));
  lrs_ = doubles(state.at("lrs"));
  iters_.clear();
  for (const auto& one : state.at("iters").as_list()) iters_.push_back(one.as_int());
  values_.clear();
  for (const auto& row : state.at("values").as_list()) values_.push_back(doubles(row));
  warned_ = state.at("warned").as_bool();
  const auto* counts = state.find("train_counts");
  if (counts == nullptr) return;
  std::vector<at::Tensor> earlier;
  for (const auto& list : counts->as_list()) {
    std::vector<int64_t> numbers;
    for (const auto& one : list.as_list()) numbers.push_back(one.as_int());
    earlier.push_back(numbers.empty() ? at::Tensor() : at::tensor(numbers, at::kLong));
  }
  train_sums_.set_earlier(std::move(earlier));
  resumed_ = true;
}

}  // namespace hasten::learner
