// See recompute.h. The engine of autograd, with hooks for saved tensors.
#include "hasten/parallel/recompute/recompute.h"

#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>
#include <torch/types.h>

#include <mutex>
#include <optional>
#include <typeinfo>
#include <vector>

#include "hasten/core/error.h"
#include "hasten/precision/autocast.h"
#include "hasten/process/random.h"

// A namespace with a name: files of a room may be compiled together.
namespace hasten::parallel::recomputation {

using torch::autograd::Engine;
using torch::autograd::SavedVariableHooks;

static const Origin kRecompute{"recompute"};

struct Region;

// The region of this thread, whose operators save tickets, or the second run, whose operators deliver values.
struct Thread {
  enum class Mode { kPlain, kTickets, kValues, kNothing } mode = Mode::kPlain;
  std::shared_ptr<Region> region = {};
};

static Thread& this_thread() {
  thread_local Thread thread;
  return thread;
}

// A change of `this_thread` until the end of a scope.
class InMode {
 public:
  InMode(Thread::Mode mode, std::shared_ptr<Region> region)
      : before_(std::exchange(this_thread(), Thread{mode, std::move(region)})) {}
  ~InMode() { this_thread() = std::move(before_); }
  InMode(const InMode&) = delete;
  InMode& operator=(const InMode&) = delete;

 private:
  Thread before_;
};

struct Value {
  at::Tensor tensor;
  int64_t version = 0;
};

struct Region {
  std::function<void()> again;
  process::RandomState random = process::capture_random_state();
  precision::AutocastState autocast = precision::Autocast::captured();
  size_t num_tickets = 0;
  /// Backward may run in several threads.
  std::mutex mutex;
  std::vector<Value> values;
};

static void run_again(const std::shared_ptr<Region>& region) {
  region->values.clear();
  const auto random = process::capture_random_state();
  const auto at_end = c10::make_scope_exit([&] { process::restore_random_state(random); });
  process::restore_random_state(region->random);
  const at::AutoGradMode with_gradients(true);
  const precision::Autocast autocast(region->autocast);
  const InMode values(Thread::Mode::kValues, region);
  region->again();
  if (region->values.size() == region->num_tickets) return;
  throw UsageError(kRecompute, "the second run of a region saved ", region->values.size(),
                   " tensors for backward, the first ", region->num_tickets,
                   ". It must compute the same again: take what differs out of the region.");
}

// A parameter is kept itself: it costs nothing, and a change of it is noticed.
static bool is_parameter(const at::Tensor& tensor) {
  return tensor.is_leaf() && tensor.requires_grad();
}

class Ticket : public SavedVariableHooks {
 public:
  explicit Ticket(std::shared_ptr<Region> region) : region_(std::move(region)) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    const at::Tensor base = tensor.is_view() ? at::Tensor(tensor._base()) : tensor;
    if (is_parameter(base)) {
      parameter_ = base;
      version_ = base._version();
    }
    if (is_parameter(tensor)) {
      kept_ = tensor.detach();
      return;
    }
    sizes_ = tensor.sizes().vec();
    dtype_ = tensor.scalar_type();
    place_ = region_->num_tickets++;
  }

  at::Tensor call_unpack_hook() override {
    if (parameter_.defined() && parameter_._version() != version_) {
      throw UsageError(
          kRecompute, "a parameter of [", join(parameter_.sizes(), ", "),
          "] was changed in place after a forward whose backward computes it again. Run backward before the "
          "optimizer's step.");
    }
    if (kept_.defined()) return kept_;
    const std::lock_guard lock(region_->mutex);
    auto& values = region_->values;
    if (place_ >= values.size() || !values[place_].tensor.defined()) run_again(region_);
    const Value value = std::exchange(values[place_], Value{});
    if (value.tensor.sizes() != at::IntArrayRef(sizes_) || value.tensor.scalar_type() != dtype_) {
      throw UsageError(kRecompute, "the second run of a region saved a tensor of [", join(value.tensor.sizes(), ", "),
                       "] where the first saved [", join(sizes_, ", "),
                       "]. It must compute the same again: take what differs out of the region.");
    }
    if (value.tensor._version() != value.version) {
      throw UsageError(kRecompute, "a tensor of [", join(sizes_, ", "),
                       "] that backward needs was changed in place inside a region. Use the operator that does not.");
    }
    return value.tensor;
  }

 private:
  std::shared_ptr<Region> region_;
  at::Tensor parameter_, kept_;
  int64_t version_ = 0;
  std::vector<int64_t> sizes_;
  at::ScalarType dtype_ = at::kFloat;
  size_t place_ = 0;
};

// Of the second run: its graph is dropped.
class Delivery : public SavedVariableHooks {
 public:
  explicit Delivery(std::shared_ptr<Region> region) : region_(std::move(region)) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    if (!region_ || is_parameter(tensor)) return;
    const at::Tensor value = tensor.detach();
    region_->values.push_back({value, value._version()});
  }
  at::Tensor call_unpack_hook() override {
    throw InternalError(kRecompute, "backward through the second run of a region.");
  }

 private:
  std::shared_ptr<Region> region_;
};

class RecomputeEngine : public Engine {
 public:
  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    const auto& thread = this_thread();
    switch (thread.mode) {
      case Thread::Mode::kPlain:
        return nullptr;
      case Thread::Mode::kTickets:
        return std::make_unique<Ticket>(thread.region);
      case Thread::Mode::kValues:
        return std::make_unique<Delivery>(thread.region);
      case Thread::Mode::kNothing:
        return std::make_unique<Delivery>(nullptr);
    }
    return nullptr;
  }
};

static Engine& engine() {
  // Never ended: threads of its own may run until the process ends.
  static auto* const kEngine = new RecomputeEngine;
  return *kEngine;
}

// An engine must be there before the process's first backward. One that is not libtorch's own (Python's) stays.
static bool install() {
  if (typeid(Engine::get_default_engine()) != typeid(Engine)) return false;
  torch::autograd::set_default_engine_stub(&engine);
  return true;
}
static const bool kInstalled = install();

}  // namespace hasten::parallel::recomputation

namespace hasten::parallel::detail {

using namespace recomputation;

struct RecomputeScope::State {
  InMode mode;
};

RecomputeScope::RecomputeScope(std::function<void()> again) {
  if (!at::GradMode::is_enabled()) return;
  using Mode = Thread::Mode;
  const Mode now = this_thread().mode;
  if (now == Mode::kValues || now == Mode::kNothing) {
    // A region inside the one that runs again: its values are its own tickets'.
    state_.reset(new State{{Mode::kNothing, nullptr}});
    return;
  }
  if (!kInstalled) {
    throw UsageError(kRecompute,
                     "another engine of autograd was installed before hasten's (by Python, or another library), which "
                     "gives no hooks for saved tensors. Leave recomputation out.");
  }
  auto region = std::make_shared<Region>();
  region->again = std::move(again);
  state_.reset(new State{{Mode::kTickets, std::move(region)}});
}

RecomputeScope::~RecomputeScope() = default;

}  // namespace hasten::parallel::detail
