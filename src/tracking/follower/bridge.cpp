// See bridge.h. Each tracker has a process. It gets the run's facts as JSON in its arguments, and replies with a JSON
// object a line. It ends when it has passed on the end of the run. A pipe to its standard input ends when this process
// is gone.
#include "tracking/follower/bridge.h"

#include "hasten/core/error.h"
#include "tracking/follower/child.h"
#include "tracking/follower/resolve.h"
#include "tracking/follower/sink.h"
#include "tracking/journal/json.h"

#include "tracking_follower_bridge_py.h"

namespace hasten::tracking {
namespace {

constexpr int kMostBridgeStarts = 4;

class BridgeSink : public Sink {
 public:
  using Sink::Sink;

 private:
  std::string facts() const {
    const RunInfo& run = context_->run;
    core::Value facts = core::Value::map({{"name", config_.name},
                                          {"journal", context_->options.journal.string()},
                                          {"part", state_.position.part},
                                          {"offset", state_.position.offset},
                                          {"state", state_.state},
                                          {"options", config_.options},
                                          {"project", run.project},
                                          {"run_id", run.run_id},
                                          {"folder", run.folder.string()},
                                          {"rank", run.rank}});
    std::string json;
    append_json(json, facts);
    return json;
  }

  void start() {
    if (starts_ >= kMostBridgeStarts) {
      throw UsageError(Origin{"tracking"}, "its Python process ended ", starts_,
                       " times without getting on, the last time ", last_end_, ". Its output is in ", log_file(), ".");
    }
    ++starts_;
    const auto& environment = context_->options.environment;
    const auto python = tracker_python(environment);
    if (python.empty())
      throw UsageError(Origin{"tracking"},
                       "there is no python3 on PATH. Install Python, or set HASTEN_TRACKER_PYTHON.");
    child_ = std::make_unique<Child>(
        ChildOptions{.arguments = {python.string(), "-u", "-c", std::string(bridge_program()), facts()},
                     .environment = environment,
                     .error_file = log_file()});
    heard_at_ = std::chrono::steady_clock::now();
    closed_ = false;
  }

  std::filesystem::path log_file() const {
    auto path = ack_path(context_->options.journal, config_.name);
    return path.replace_extension(".log");
  }

  bool advance() override {
    if (!child_) start();
    if (context_->closing && !closed_) {
      child_->close_input();
      closed_ = true;
    }
    bool moved = false;
    for (const std::string& line : child_->read_lines(std::chrono::milliseconds(200))) moved = take(line) || moved;
    const auto silence = std::chrono::duration<double>(std::chrono::steady_clock::now() - heard_at_).count();
    if (silence > context_->options.bridge_timeout_s) {
      child_->kill();
      last_end_ = text("after ", static_cast<int>(silence), " s without a word");
      child_->wait(std::chrono::seconds(5));
      throw CommError(Origin{"tracking"}, "bridge", "its Python process did not answer for ", static_cast<int>(silence),
                      " s");
    }
    if (child_->output_ended() && !state_.done) {
      const auto code = child_->wait(std::chrono::seconds(5));
      last_end_ = text("with exit code ", code.value_or(-1));
      throw CommError(Origin{"tracking"}, "bridge", "its Python process ended with exit code ", code.value_or(-1),
                      error_.empty() ? "" : ": ", error_, "; its output is in ", log_file());
    }
    return moved || !state_.done;
  }

  // Returns true for an acknowledgement of something new.
  bool take(const std::string& line) {
    const auto reply = read_json(line);
    if (!reply || !reply->is_map()) return false;  // rubbish: neither a sign of life
    heard_at_ = std::chrono::steady_clock::now();
    if (const auto* fatal = reply->find("fatal"); fatal != nullptr && fatal->is_string()) {
      throw UsageError(Origin{"tracking"}, fatal->as_string());
    }
    if (const auto* error = reply->find("error"); error != nullptr && error->is_string()) {
      error_ = error->as_string();
      const auto* op = reply->find("op");
      context_->warn(text("the tracker '", config_.name, "' refused a record",
                          op != nullptr && op->is_string() ? " of the kind '" + op->as_string() + "'" : "",
                          ", which is left out: ", error_));
    }
    if (const auto* warning = reply->find("warning"); warning != nullptr && warning->is_string()) {
      context_->warn(text("the tracker '", config_.name, "': ", warning->as_string()));
    }
    if (const auto* state = reply->find("state")) state_.state = *state;
    const auto* offset = reply->find("offset");
    const auto* part = reply->find("part");
    const auto* done = reply->find("done");
    if (done != nullptr && done->is_bool() && done->as_bool()) {
      state_.done = true;
      child_->wait(std::chrono::seconds(20));
    }
    if (offset == nullptr || part == nullptr || !offset->is_int() || !part->is_int()) return false;
    const JournalPosition position{static_cast<int>(part->as_int()), offset->as_int()};
    const bool moved = !(position == state_.position);
    if (moved) starts_ = 1;
    state_.position = position;
    if (moved || state_.done) acknowledge();
    return moved;
  }

  void reset() override {
    if (child_) child_->kill();
    child_.reset();
    state_ = state();
  }

  std::unique_ptr<Child> child_;
  std::chrono::steady_clock::time_point heard_at_ = {};
  int starts_ = 0;
  bool closed_ = false;
  std::string last_end_, error_;
};

}  // namespace

std::string_view bridge_program() noexcept {
  return kBridgePy;
}

std::unique_ptr<Sink> make_bridge_sink(std::shared_ptr<SinkContext> context, SinkConfig config) {
  return std::make_unique<BridgeSink>(std::move(context), std::move(config));
}

}  // namespace hasten::tracking
