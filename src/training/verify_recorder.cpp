// See verify_recorder.h.
#include "hasten/training/verify_recorder.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <mutex>

#include "hasten/core/error.h"
#include "hasten/core/sentence.h"
#include "hasten/core/text.h"
#include "hasten/process/device.h"

namespace hasten::training {
namespace {

using core::Value;

constexpr const char* kVariable = "HASTEN_VERIFY";

std::string hexadecimal(uint64_t number) {
  char digits[17] = {};
  const auto end = std::to_chars(digits, digits + 16, number, 16).ptr;
  return std::string(digits, end);
}

Value list_of(const TensorDigest& digest) {
  return Value(Value::List(digest.begin(), digest.end()));
}

uint64_t generator_hash() {
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return add_to_hash(0, generator.get_state());
}

void set_seed(at::Generator generator, uint64_t seed) {
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
}

Value loss_value(const at::Tensor& loss) {
  if (!loss.defined()) return {};
  const at::Tensor all = loss.detach().to(at::kDouble);
  return all.numel() == 1 ? Value(all.item<double>()) : Value(all.sum().item<double>());
}

template <class Options>
bool add_rates(Value& rates, const torch::optim::OptimizerOptions& options, const std::string& prefix) {
  const auto* own = dynamic_cast<const Options*>(&options);
  if (own == nullptr) return false;
  if constexpr (requires { own->momentum(); }) rates[prefix + "momentum"] = own->momentum();
  if constexpr (requires { own->betas(); }) {
    rates[prefix + "beta1"] = std::get<0>(own->betas());
    rates[prefix + "beta2"] = std::get<1>(own->betas());
  }
  if constexpr (requires { own->weight_decay(); }) rates[prefix + "weight decay"] = own->weight_decay();
  return true;
}

struct Place {
  std::mutex mutex;
  std::shared_ptr<VerifyRecorder> recorder;
  std::atomic<VerifyRecorder*> known{nullptr};
};

Place& place() {
  static Place* const one = new Place;  // never destroyed: loaders may outlive it
  return *one;
}

}  // namespace

std::optional<VerifyOptions> VerifyOptions::of(const Environment& environment) {
  const auto given = environment.text(kVariable);
  if (!given) return std::nullopt;
  try {
    const Value read = Value::parse_json(*given, kVariable);
    return VerifyOptions{.path = read.at("path").as_string(),
                         .num_steps = read.at("steps").as_int(),
                         .num_shares = static_cast<int>(read.at("shares").as_int()),
                         .whole = read.at("whole").as_bool(),
                         .seed = static_cast<uint64_t>(read.at("seed").as_int())};
  } catch (const std::exception& error) {
    throw UsageError(Origin{"verify"}, kVariable, "=", *given,
                     " is not what hasten verify writes: ", inner_words(error.what()),
                     ". Leave it out, and run the program by hasten verify.");
  }
}

VerifyRecorder::VerifyRecorder(VerifyOptions options, int rank, int world_size)
    : options_(std::move(options)), rank_(rank), file_(text(options_.path, ".rank", rank), std::ios::trunc) {
  if (!file_) {
    throw UsageError(Origin{"verify", rank, world_size}, "'", options_.path, ".rank", rank,
                     "' cannot be written. Give --record another file.");
  }
  std::filesystem::create_directories(scratch(""));
  write(Value::map({{"event", "open"},
                    {"world_size", world_size},
                    {"shares", options_.num_shares},
                    {"whole", options_.whole},
                    {"steps", options_.num_steps}}));
  const auto note_exit = [](int status, void*) {
    auto* const recorder = verify_recorder();
    if (recorder != nullptr && status == 0) recorder->write(Value::map({{"event", "exit"}}));
  };
  ::on_exit(note_exit, nullptr);
}

void VerifyRecorder::write(Value event) {
  event["rank"] = rank_;
  file_ << event.to_json() << '\n' << std::flush;
}

void VerifyRecorder::write_start() {
  if (started_ || !sources_.gradients) return;
  const auto whole = sources_.summon();
  const auto parameters = sources_.parameters();
  if (parameters.empty()) return;
  started_ = true;
  Value others = Value::list();
  for (const auto& parameter : parameters) {
    if (!parameter.is_prepared) others.push_back(parameter.name);
  }
  write(Value::map({{"event", "start"},
                    {"facts", sources_.facts()},
                    {"unprepared", others},
                    {"parameters", digests(parameters)},
                    {"buffers", digests(sources_.buffers())}}));
}

void VerifyRecorder::seed(uint64_t number, uint64_t share) {
  const uint64_t value = add_to_hash(add_to_hash(add_to_hash(0, options_.seed), number), share);
  set_seed(at::detail::getDefaultCPUGenerator(), value);
  for (int device = 0; device < process::num_cuda_devices(); ++device) {
    const auto index = static_cast<c10::DeviceIndex>(device);
    set_seed(at::globalContext().defaultGenerator(c10::Device(c10::kCUDA, index)), value);
  }
}

void VerifyRecorder::begin_pass() {
  // Far from the numbers of batches.
  seed(++num_passes_ << 32, 0);
}

void VerifyRecorder::note_batch(const VerifyBatch& given) {
  VerifyBatch batch = given;
  // A loader that was not prepared knows no rank.
  if (!batch.is_prepared) batch.share = rank_;
  batch_ = batch;
  write_start();
  stepped_in_batch_ = false;
  const auto share = static_cast<size_t>(batch.share);
  if (num_batches_.size() <= share) num_batches_.resize(share + 1);
  seed(++num_batches_[share], share);
  seeded_ = generator_hash();
  Value positions = Value::list();
  for (const size_t position : batch.positions) positions.push_back(static_cast<int64_t>(position));
  batches_.push_back(Value::map({{"share", batch.share},
                                 {"prepared", batch.is_prepared},
                                 {"positions", positions},
                                 {"bytes", batch.bytes == 0 ? std::string() : hexadecimal(batch.bytes)}}));
  if (!takes_turns() || !batch.is_prepared || !sources_.gradients) return;
  if (sources_.buffers) buffers_.enter(batch.share, sources_.buffers);
  auto& gradients = *sources_.gradients;
  gradients.optimizers().begin_batch();
  if (batch.share == 0) outer_ends_window_ = true;
  gradients.set_sync_gradients(batch.ends_step);
}

void VerifyRecorder::accumulate(const std::function<bool(bool ends_pass)>& count) {
  auto& gradients = *sources_.gradients;
  const bool is_first = !batch_ || batch_->share == 0;
  if (is_first) outer_ends_window_ = count(batch_ && batch_->ends_pass);
  gradients.set_sync_gradients(outer_ends_window_ && (!batch_ || batch_->ends_step));
}

Value VerifyRecorder::digests(const std::vector<VerifyTensor>& tensors) const {
  Value all = Value::map();
  for (const auto& one : tensors) all[one.name] = list_of(digest_of(one.tensor, one.name));
  return all;
}

Value VerifyRecorder::gradient_digests() const {
  const double scale = sources_.scale();
  Value all = Value::map();
  for (const auto& parameter : sources_.parameters()) {
    if (!parameter.tensor.requires_grad()) continue;
    const at::Tensor gradient = sources_.gradient(parameter.tensor);
    if (!gradient.defined()) continue;
    TensorDigest digest = digest_of(gradient, parameter.name);
    for (double& number : digest) number /= scale;
    all[parameter.name] = list_of(digest);
  }
  return all;
}

void VerifyRecorder::before_backward(const BackwardFacts& facts) {
  write_start();
  if (takes_turns() && stepped_in_batch_) {
    throw UsageError(Origin{"verify"},
                     "an optimizer has stepped between two backwards of one batch, so the batches of several ranks "
                     "cannot be computed one after the other. Use hasten verify --whole.");
  }
  if (losses_.as_list().empty()) write(Value::map({{"event", "begin"}, {"step", num_steps_}}));
  const auto whole = sources_.summon();
  core::Value now = digests(sources_.parameters());
  if (before_.empty()) {
    before_ = std::move(now);
  } else {
    wrote_ = wrote_ || before_ != now;
  }
  if (held_) changed_ = changed_ || *held_ != gradient_digests();
  held_.reset();
  const uint64_t generator = generator_hash();
  Value loss = Value::map({{"share", batch_ ? batch_->share : rank_},
                           {"value", loss_value(facts.loss)},
                           {"generator", hexadecimal(generator)},
                           {"drew", seeded_ && *seeded_ != generator}});
  if (facts.weight) loss["weight"] = *facts.weight;
  losses_.push_back(std::move(loss));
}

void VerifyRecorder::after_backward(const BackwardFacts& facts) {
  if (!facts.ends_window) {
    if (takes_turns()) held_ = gradient_digests();
    return;
  }
  gradients_ = gradient_digests();
  if (takes_turns()) buffers_.end_window(sources_.buffers);
}

Value VerifyRecorder::rates_of(const torch::optim::Optimizer& optimizer) const {
  Value rates = Value::map();
  int number = 0;
  for (const auto& group : optimizer.param_groups()) {
    if (!group.has_options()) continue;
    const auto& options = group.options();
    const std::string prefix = text("group ", number++, " ");
    rates[prefix + "lr"] = options.get_lr();
    add_rates<torch::optim::SGDOptions>(rates, options, prefix) ||
        add_rates<torch::optim::AdamOptions>(rates, options, prefix) ||
        add_rates<torch::optim::AdamWOptions>(rates, options, prefix) ||
        add_rates<torch::optim::RMSpropOptions>(rates, options, prefix);
  }
  return rates;
}

int64_t VerifyRecorder::number_of(const torch::optim::Optimizer& optimizer, bool counts) {
  if (counts) return 0;
  auto known = std::find(others_.begin(), others_.end(), &optimizer);
  if (known == others_.end()) known = others_.insert(known, &optimizer);
  return 1 + (known - others_.begin());
}

void VerifyRecorder::after_step(StepContext& context) {
  // The Accelerator is gone before its optimizer.
  if (!sources_.gradients) return;
  write_start();
  if (takes_turns() && context.closure) {
    throw UsageError(Origin{"verify"},
                     "the optimizer computes its loss anew (a closure, as LBFGS has), so the batches of several ranks "
                     "cannot be computed one after the other. Use hasten verify --whole.");
  }
  const bool counts = counted_.is(context.optimizer, sources_.gradients->optimizers());
  stepped_in_batch_ = true;
  held_.reset();
  Value event = Value::map({{"event", "step"},
                            {"step", num_steps_},
                            {"optimizer", number_of(context.optimizer, counts)},
                            {"batches", std::exchange(batches_, Value::list())},
                            {"losses", std::exchange(losses_, Value::list())},
                            {"before", std::exchange(before_, Value::map())},
                            {"gradients", std::exchange(gradients_, Value::map())},
                            {"changed", std::exchange(changed_, false)},
                            {"wrote", std::exchange(wrote_, false)},
                            {"scale", sources_.scale()},
                            {"skipped", context.skip},
                            {"rates", rates_of(context.optimizer)}});
  if (norm_) event["norm"] = *std::exchange(norm_, std::nullopt);
  const auto whole = sources_.summon();
  event["parameters"] = digests(sources_.parameters());
  event["buffers"] = digests(sources_.buffers());
  write(std::move(event));
  if (!counts) return;
  if (++num_steps_ >= options_.num_steps) end_process();
}

void VerifyRecorder::end_process() {
  write(Value::map({{"event", "end"}}));
  file_.close();
  try {
    sources_.meet();
  } catch (const std::exception&) {
    // Another rank has ended before: its steps say so.
  }
  std::cout.flush();
  std::fflush(nullptr);
  // Destructors of a loop that is left in its middle could wait for the other ranks.
  std::_Exit(0);
}

VerifyRecorder* verify_recorder() noexcept {
  return place().known.load(std::memory_order_acquire);
}

std::shared_ptr<VerifyRecorder> open_verify_recorder(const VerifyOptions& options, int rank, int world_size) {
  Place& here = place();
  const std::lock_guard lock(here.mutex);
  if (!here.recorder) here.recorder = std::make_shared<VerifyRecorder>(options, rank, world_size);
  here.known.store(here.recorder.get(), std::memory_order_release);
  return here.recorder;
}

}  // namespace hasten::training
