// The Gloo backend: CPU tensors over TCP, through the ProcessGroupGloo inside libtorch.
//
// libtorch's packages ship no Gloo headers. gloo_decl/ holds the few declarations that ProcessGroupGloo.hpp needs. Only
// this file includes it.
#include <atomic>
#include <csignal>
#include <system_error>
#include <thread>
#include <utility>

#include <torch/headeronly/version.h>
#include <mutex>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "comm/backend/c10d_backend.h"
#include "comm/gloo/direct_collectives.h"

namespace hasten::comm {
namespace {

// ProcessGroupGloo has no way to end an operation early; closing its contexts' connections is one.
class ClosableGloo : public c10d::ProcessGroupGloo {
 public:
  using c10d::ProcessGroupGloo::ProcessGroupGloo;
  void close() {
    for (const auto& context : contexts_) context->closeConnections();
  }
};

// The flight recorder of libtorch before 2.13 changes a map of the whole process, outside of any lock, when an
// operation starts. With it, operations start one after the other. None waits for another rank to start.
std::unique_lock<std::mutex> turn_to_start() {
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
  static std::mutex starting;
  return std::unique_lock(starting);
#else
  return {};
#endif
}

class GlooBackend : public C10dBackend {
 public:
  GlooBackend(c10::intrusive_ptr<ClosableGloo> gloo, const BackendSetup& setup)
      : gloo_(std::move(gloo)), direct_(setup) {}
  // libtorch's destructor waits for operations under way. Behind close() one may wait until its timeout: Gloo wakes no
  // receive of a connection that this rank has closed. So the wait is another thread's.
  ~GlooBackend() override {
    if (!is_closed_) return;
    try {
      std::thread([gloo = std::move(gloo_)]() mutable { gloo.reset(); }).detach();
    } catch (const std::system_error&) {
      // There is no thread left, and the wait was this one's.
    }
  }

  const char* name() const override { return "gloo"; }
  c10::DeviceType device_type() const override { return c10::DeviceType::CPU; }

  bool reduces(at::ScalarType dtype) const override {
    switch (dtype) {
      case at::kFloat:
      case at::kDouble:
      case at::kHalf:
      case at::kBFloat16:
      case at::kChar:
      case at::kByte:
      case at::kInt:
      case at::kLong:
        return true;
      default:
        return false;
    }
  }

  Started all_reduce(at::Tensor tensor, ReduceOp op) override {
    const bool is_small = direct_.takes(tensor.nbytes()) && direct_.reduces(tensor.scalar_type());
    return is_small ? direct_.all_reduce(tensor, op) : C10dBackend::all_reduce(tensor, op);
  }
  Started all_gather(at::Tensor output, at::Tensor input) override {
    const bool is_small = direct_.takes(input.nbytes());
    return is_small ? direct_.all_gather(output, input) : C10dBackend::all_gather(output, input);
  }
  Started broadcast(at::Tensor bytes, int root) override {
    const bool is_small = direct_.takes(bytes.nbytes());
    return is_small ? direct_.broadcast(bytes, root) : C10dBackend::broadcast(bytes, root);
  }
  Started barrier() override { return direct_.barrier(); }

  void set_timeout(std::chrono::milliseconds timeout) override {
    direct_.set_timeout(timeout);
    C10dBackend::set_timeout(timeout);
  }

  void close() noexcept override {
    direct_.close();
    is_closed_ = true;
    try {
      gloo_->close();
    } catch (const std::exception&) {
      // The connections are gone already, which is what was wanted.
    }
  }

 protected:
  Native native() override { return {.backend = gloo_.get(), .turn = turn_to_start()}; }

 private:
  c10::intrusive_ptr<ClosableGloo> gloo_;
  DirectCollectives direct_;
  std::atomic<bool> is_closed_ = false;
};

std::shared_ptr<::gloo::transport::Device> make_device(const GroupOptions& options) {
  if (!options.address.empty()) return c10d::ProcessGroupGloo::createDeviceForHostname(options.address);
  const auto& interface = options.network_interface;
  if (!interface.empty()) return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  return c10d::ProcessGroupGloo::createDefaultDevice();
}

// Gloo writes to its sockets without MSG_NOSIGNAL. If a peer has died, the next write would end this process by SIGPIPE
// before it could report anything. Python ignores the signal from its start; C++ programs have to. A handler of the
// user's own is left alone.
void survive_closed_connections() {
  struct sigaction action {};
  if (sigaction(SIGPIPE, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) return;
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, nullptr);
}

}  // namespace

std::unique_ptr<Backend> make_gloo(const BackendSetup& setup) {
  if (setup.options.ignore_sigpipe) survive_closed_connections();
  auto options = c10d::ProcessGroupGloo::Options::create(setup.options.timeout);
  options->devices.push_back(make_device(setup.options));
  auto store = c10::intrusive_ptr<c10d::Store>::reclaim_copy(setup.store.native());
  return std::make_unique<GlooBackend>(c10::make_intrusive<ClosableGloo>(store, setup.rank, setup.world_size, options),
                                       setup);
}

}  // namespace hasten::comm
