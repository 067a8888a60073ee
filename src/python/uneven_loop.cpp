// See python/uneven_loop.h.
#include "python/uneven_loop.h"

#include <chrono>
#include <exception>
#include <utility>

#include "hasten/core/error.h"
#include "hasten/process/thread_streams.h"
#include "python/bindings.h"

namespace hasten::python {
namespace {

// How long a wait goes on without a look at signals.
constexpr std::chrono::milliseconds kBetweenSignals{50};

}  // namespace

UnevenLoop::UnevenLoop(const Accelerator& accelerator, const DistributedModule& module) : accelerator_(accelerator) {
  const WithoutGil no_gil;
  auto begun = begun_.get_future();
  thread_ = std::thread([this, &module, set_streams = process::streams_for_threads()] {
    try {
      set_streams();
      accelerator_.join_uneven_inputs(module.prepared(), [this] {
        auto body_ends = body_.get_future();
        has_begun_ = true;
        begun_.set_value();
        body_ends.get();
      });
      ended_.set_value();
    } catch (...) {
      (has_begun_ ? ended_ : begun_).set_exception(std::current_exception());
    }
  });
  try {
    begun.get();
  } catch (...) {
    thread_.join();
    throw;
  }
}

UnevenLoop::~UnevenLoop() {
  if (!is_closed_) leave("the loop was not closed", false);
}

void UnevenLoop::wait_for_end() {
  bool interrupted = false;
  while (true) {
    {
      const WithoutGil no_gil;
      if (end_.wait_for(kBetweenSignals) == std::future_status::ready) break;
    }
    if (interrupted || PyErr_CheckSignals() == 0) continue;
    interrupted = true;
    py::error_scope raised;  // what the handler has raised
    const WithoutGil no_gil;
    accelerator_.process().group().fail("interrupted by a signal");
  }
  {
    const WithoutGil no_gil;
    thread_.join();
  }
  if (interrupted) throw py::error_already_set();
}

void UnevenLoop::close() {
  if (std::exchange(is_closed_, true)) return;
  body_.set_value();
  wait_for_end();
  end_.get();
}

void UnevenLoop::leave(const std::string& words, bool others_know) noexcept {
  if (std::exchange(is_closed_, true)) return;
  const Origin origin{"python"};
  body_.set_exception(others_know ? std::make_exception_ptr(CommError(origin, "join", words))
                                  : std::make_exception_ptr(UsageError(words)));
  const WithoutGil no_gil;
  thread_.join();
}

void bind_uneven_loop(py::module_& module) {
  py::class_<UnevenLoop>(module, "UnevenLoop", py::module_local())
      .def(py::init<const Accelerator&, const DistributedModule&>(), py::keep_alive<1, 2>(), py::keep_alive<1, 3>())
      .def("close", &UnevenLoop::close)
      .def("leave", &UnevenLoop::leave);
}

}  // namespace hasten::python
