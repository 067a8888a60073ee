// See follower.h.
#include "hasten/tracking/follower/follower.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "hasten/core/error.h"
#include "tracking/follower/sink.h"
#include "tracking/journal/json.h"

namespace hasten::tracking {

struct Follower::Impl {
  std::shared_ptr<SinkContext> context = std::make_shared<SinkContext>();
  std::vector<std::shared_ptr<Sink>> sinks;
};

namespace {

// Which of the two ways an entry with both is fed: MLflow over REST if the server uses HTTP.
bool uses_bridge(const RegistryEntry& entry, const Environment& environment) {
  if (entry.python_module.empty()) return false;
  if (!entry.make) return true;
  return !environment.text("MLFLOW_TRACKING_URI").value_or("").starts_with("http");
}

}  // namespace

Follower::Follower(FollowerOptions options) : impl_(std::make_shared<Impl>()) {
  SinkContext& context = *impl_->context;
  const Record start = read_start(options.journal);
  if (options.sinks.empty()) options.sinks = read_sinks(options.journal, options.registry);
  context.run = read_run_info(start, options.journal.parent_path());
  context.options = std::move(options);
  for (const SinkConfig& config : context.options.sinks) {
    const RegistryEntry* entry = config.tracker ? nullptr : &context.options.registry.at(config.name);
    if (entry != nullptr && config.name == "journal") continue;
    const bool bridge = entry != nullptr && uses_bridge(*entry, context.options.environment);
    impl_->sinks.push_back(bridge ? make_bridge_sink(impl_->context, config)
                                  : make_tracker_sink(impl_->context, config));
  }
  // The threads own what they use, so that one that hangs in a client can be left behind.
  for (const auto& sink : impl_->sinks) std::thread([sink] { sink->run(); }).detach();
}

Follower::~Follower() {
  impl_->context->abandoned = true;
  impl_->context->changed.notify_all();
}

void Follower::close() {
  {
    const std::lock_guard lock(impl_->context->mutex);
    impl_->context->closing = true;
  }
  impl_->context->changed.notify_all();
}

bool Follower::is_done() const {
  for (const auto& sink : impl_->sinks) {
    if (!sink->is_over()) return false;
  }
  return true;
}

bool Follower::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(impl_->context->mutex);
  const auto until = std::chrono::steady_clock::now() + timeout;
  // Looked at regularly as well: a sink ends without holding the mutex.
  while (!is_done() && std::chrono::steady_clock::now() < until) {
    impl_->context->changed.wait_for(lock, std::chrono::milliseconds(20));
  }
  for (const auto& sink : impl_->sinks) {
    if (!sink->state().done) return false;
  }
  return true;
}

std::vector<SinkState> Follower::states() const {
  std::vector<SinkState> states;
  for (const auto& sink : impl_->sinks) states.push_back(sink->state());
  return states;
}

}  // namespace hasten::tracking
