// See metric.h.
#include "hasten/learner/metric.h"

#include <ATen/ATen.h>

#include <limits>

#include "hasten/comm/types/purpose.h"
#include "hasten/core/error.h"
#include "hasten/data/metrics/counted_metrics.h"

namespace hasten::learner {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

at::Tensor detached(const at::Tensor& tensor) {
  return tensor.requires_grad() ? tensor.detach() : tensor;
}

class Average final : public Metric::Impl {
 public:
  using Value = std::function<at::Tensor(const MetricInput&)>;
  Average(std::string name, Value value, bool needs_targets)
      : name_(std::move(name)), value_(std::move(value)), needs_targets_(needs_targets) {}
  std::string name() const override { return name_; }
  void reset() override { mean_.reset(); }
  void accumulate(const MetricInput& input) override {
    const auto value = value_(input);
    if (value.defined())
      mean_.update((value.numel() == 1 ? value : value.detach().mean()).item<double>(),
                   static_cast<double>(input.size));
  }
  std::optional<at::Tensor> counts() const override { return mean_.counts(); }
  double value_of(const at::Tensor& counts) const override { return data::Mean::value_of(counts); }
  bool needs_targets() const override { return needs_targets_; }

 private:
  std::string name_;
  Value value_;
  bool needs_targets_;
  data::Mean mean_;
};

class Given final : public Metric::Impl {
 public:
  Given(std::string name, std::function<double()> value) : name_(std::move(name)), value_(std::move(value)) {}
  std::string name() const override { return name_; }
  void reset() override {}
  void accumulate(const MetricInput& /*input*/) override {}
  double value(const comm::Group& /*group*/) const override { return value_(); }
  bool needs_targets() const override { return false; }

 private:
  std::string name_;
  std::function<double()> value_;
};

class Counted final : public Metric::Impl {
 public:
  Counted(std::string name, MetricFunction count, std::function<double(const at::Tensor&)> finish)
      : name_(std::move(name)), count_(std::move(count)), finish_(std::move(finish)) {}
  std::string name() const override { return name_; }
  void reset() override { counts_ = at::Tensor(); }
  void accumulate(const MetricInput& input) override {
    auto more = count_(detached(input.prediction), input.target);
    if (!more.is_cpu() || more.scalar_type() != at::kLong) more = more.to(at::kCPU, at::kLong);
    more = more.contiguous();
    if (counts_.defined() && counts_.numel() != more.numel()) {
      throw UsageError(Origin{"learner"}, "metric ", name_, ": ", more.numel(), " counts in this batch, ",
                       counts_.numel(),
                       " before; expected predictions with the same number of classes in every batch.");
    }
    if (!counts_.defined()) {
      counts_ = more.clone();
      return;
    }
    // Few numbers: an operator would take longer than the sum.
    auto* sums = counts_.mutable_data_ptr<int64_t>();
    const auto* one = more.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < more.numel(); ++i) sums[i] += one[i];
  }
  std::optional<at::Tensor> counts() const override { return counts_; }
  double value_of(const at::Tensor& counts) const override { return counts.defined() ? finish_(counts) : kNan; }

 private:
  std::string name_;
  MetricFunction count_;
  std::function<double(const at::Tensor&)> finish_;
  at::Tensor counts_;
};

class Means final : public Metric::Impl {
 public:
  using Values = std::function<std::vector<at::Tensor>(const at::Tensor&, const at::Tensor&)>;
  using Finish = std::function<double(const std::vector<double>&)>;
  Means(std::string name, Values values, Finish finish, size_t count)
      : name_(std::move(name)), values_(std::move(values)), finish_(std::move(finish)), means_(count) {}
  std::string name() const override { return name_; }
  void reset() override {
    for (auto& mean : means_) mean.reset();
  }
  void accumulate(const MetricInput& input) override {
    const auto values = values_(detached(input.prediction), input.target);
    for (size_t i = 0; i < means_.size(); ++i) means_[i].update(values.at(i));
  }
  std::optional<at::Tensor> counts() const override {
    std::vector<at::Tensor> parts;
    for (const auto& mean : means_) parts.push_back(mean.counts());
    return at::cat(parts);
  }
  double value_of(const at::Tensor& counts) const override {
    std::vector<double> means;
    for (const auto& part : counts.split(data::Mean::kNumCounts)) means.push_back(data::Mean::value_of(part));
    return finish_(means);
  }

 private:
  std::string name_;
  Values values_;
  Finish finish_;
  std::vector<data::Mean> means_;
};

class Accumulated final : public Metric::Impl {
 public:
  using Function = std::function<double(const at::Tensor&, const at::Tensor&)>;
  using Prepare = std::function<at::Tensor(const at::Tensor&)>;
  Accumulated(std::string name, Function function, Prepare prepare)
      : name_(std::move(name)), function_(std::move(function)), prepare_(std::move(prepare)) {}
  std::string name() const override { return name_; }
  void reset() override {
    predictions_.clear();
    targets_.clear();
  }
  void accumulate(const MetricInput& input) override {
    const auto prediction = input.prediction.detach();
    predictions_.push_back((prepare_ ? prepare_(prediction) : prediction).cpu());
    targets_.push_back(input.target.detach().cpu());
  }
  double value(const comm::Group& group) const override {
    const auto all = [&](const std::vector<at::Tensor>& parts) {
      return gather_rows(group, parts.empty() ? at::Tensor() : at::cat(parts));
    };
    const auto predictions = all(predictions_), targets = all(targets_);
    return predictions.defined() ? function_(predictions, targets) : kNan;
  }

 private:
  std::string name_;
  Function function_;
  Prepare prepare_;
  std::vector<at::Tensor> predictions_, targets_;
};

}  // namespace

double Metric::Impl::value_of(const at::Tensor& /*counts*/) const {
  return kNan;
}

double Metric::Impl::value(const comm::Group& group) const {
  if (!counts())
    throw UsageError(Origin{"learner"}, "metric ", name(),
                     " has neither counts nor a value; override one of them in its Impl.");
  struct Borrowed final : Impl {
    explicit Borrowed(const Impl& other) : own(other) {}
    std::string name() const override { return own.name(); }
    void reset() override {}
    void accumulate(const MetricInput&) override {}
    std::optional<at::Tensor> counts() const override { return own.counts(); }
    double value_of(const at::Tensor& sums) const override { return own.value_of(sums); }
    const Impl& own;
  };
  return MetricValues()({Metric(std::make_shared<Borrowed>(*this))}, group).front();
}

std::vector<at::Tensor> MetricValues::sums(const std::vector<Metric>& metrics, const comm::Group& group) {
  std::vector<std::optional<at::Tensor>> counts;
  for (const auto& metric : metrics) counts.push_back(metric.counts());
  for (size_t i = 0; i < std::min(earlier_.size(), counts.size()); ++i) {
    if (group.rank() != 0 || !counts[i] || !earlier_[i].defined()) continue;
    counts[i] = counts[i]->defined() ? *counts[i] + earlier_[i] : earlier_[i];
  }
  if (sizes_.empty()) {
    auto sizes = at::zeros({static_cast<int64_t>(metrics.size())}, at::kLong);
    for (size_t i = 0; i < metrics.size(); ++i) {
      if (counts[i] && counts[i]->defined()) sizes.mutable_data_ptr<int64_t>()[i] = counts[i]->numel();
    }
    const comm::Purpose purpose("metrics of the learner");
    if (group.world_size() > 1) group.all_reduce_(sizes, comm::ReduceOp::kMax);
    sizes_.assign(sizes.const_data_ptr<int64_t>(), sizes.const_data_ptr<int64_t>() + sizes.numel());
  }
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < metrics.size(); ++i) {
    const bool has = counts[i] && counts[i]->defined();
    if (has && counts[i]->numel() != sizes_[i] && sizes_[i] > 0) {
      throw UsageError(Origin{"learner"}, "metric ", metrics[i].name(), ": ", counts[i]->numel(), " counts, ",
                       sizes_[i], " before or on other ranks; expected predictions with the same number of classes.");
    }
    if (has) sizes_[i] = counts[i]->numel();
    parts.push_back(has ? *counts[i] : at::zeros({sizes_[i]}, at::kLong));
  }
  auto all = at::cat(parts);
  const comm::Purpose purpose("metrics of the learner");
  if (group.world_size() > 1 && all.numel() > 0) group.all_reduce_(all);
  std::vector<at::Tensor> sums;
  int64_t begin = 0;
  for (size_t i = 0; i < metrics.size(); ++i) {
    sums.push_back(counts[i] && sizes_[i] > 0 ? all.slice(0, begin, begin + sizes_[i]) : at::Tensor());
    begin += sizes_[i];
  }
  return sums;
}

std::vector<double> MetricValues::operator()(const std::vector<Metric>& metrics, const comm::Group& group) {
  const auto counts = sums(metrics, group);
  std::vector<double> values;
  for (size_t i = 0; i < metrics.size(); ++i)
    values.push_back(metrics[i].counts() ? metrics[i].value_of(counts[i]) : metrics[i].value(group));
  return values;
}

Metric Metric::named(std::string name) const {
  Metric result = *this;
  result.name_ = std::move(name);
  return result;
}

Metric avg_metric(std::string name, MetricFunction function) {
  return Metric(std::make_shared<Average>(
      std::move(name),
      [function = std::move(function)](const MetricInput& input) { return function(input.prediction, input.target); },
      true));
}

Metric avg_loss(std::string name) {
  return Metric(std::make_shared<Average>(
      std::move(name), [](const MetricInput& input) { return input.loss; }, true));
}

Metric value_metric(std::string name, std::function<double()> value) {
  return Metric(std::make_shared<Given>(std::move(name), std::move(value)));
}

Metric loss_metric(std::string name, std::function<at::Tensor()> part) {
  return Metric(std::make_shared<Average>(
      std::move(name), [part = std::move(part)](const MetricInput&) { return part(); }, false));
}

Metric accum_metric(std::string name, std::function<double(const at::Tensor&, const at::Tensor&)> function,
                    std::function<at::Tensor(const at::Tensor&)> prepare) {
  return Metric(std::make_shared<Accumulated>(std::move(name), std::move(function), std::move(prepare)));
}

Metric counted_metric(std::string name, MetricFunction count, std::function<double(const at::Tensor&)> finish) {
  return Metric(std::make_shared<Counted>(std::move(name), std::move(count), std::move(finish)));
}

Metric mean_metric(std::string name,
                   std::function<std::vector<at::Tensor>(const at::Tensor&, const at::Tensor&)> values,
                   std::function<double(const std::vector<double>&)> finish) {
  const auto one = at::ones({1});
  const size_t count = values(one, one).size();
  return Metric(std::make_shared<Means>(std::move(name), std::move(values), std::move(finish), count));
}

at::Tensor gather_rows(const comm::Group& group, const at::Tensor& rows) {
  if (group.world_size() == 1) return rows;
  // [defined, dtype, dims, sizes …]: a rank without rows gets their form from the others.
  constexpr int64_t kMaxDims = 12;
  auto form = at::zeros({3 + kMaxDims}, at::kLong);
  auto* words = form.mutable_data_ptr<int64_t>();
  if (rows.defined()) {
    words[0] = 1;
    words[1] = static_cast<int64_t>(rows.scalar_type());
    words[2] = rows.dim();
    for (int64_t i = 0; i < rows.dim(); ++i) words[3 + i] = rows.size(i);
  }
  const comm::Purpose purpose("metrics of the learner");
  const auto forms = group.all_gather(form);
  const int64_t* model = nullptr;
  int64_t most = 0;
  for (const auto& one : forms) {
    const auto* of = one.const_data_ptr<int64_t>();
    if (of[0] == 1) model = of;
    most = std::max(most, of[3]);
  }
  if (model == nullptr) return {};
  std::vector<int64_t> sizes(model + 3, model + 3 + model[2]);
  sizes[0] = most;
  auto padded =
      at::zeros(sizes, rows.defined() ? rows.options() : at::TensorOptions(static_cast<at::ScalarType>(model[1])));
  if (rows.defined() && rows.size(0) > 0) padded.slice(0, 0, rows.size(0)).copy_(rows);
  const auto parts = group.all_gather(padded);
  std::vector<at::Tensor> own;
  for (size_t i = 0; i < parts.size(); ++i) own.push_back(parts[i].slice(0, 0, forms[i].const_data_ptr<int64_t>()[3]));
  return at::cat(own);
}

}  // namespace hasten::learner
