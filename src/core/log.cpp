// The logger over spdlog; see log.h.
#include "hasten/core/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "hasten/core/error.h"
#include "hasten/core/log_sink.h"

namespace hasten {
namespace {

const std::vector<std::string> kLevelNames = {"trace", "debug", "info", "warning", "error", "critical", "off"};

spdlog::level::level_enum to_spdlog(LogLevel level) {
  static_assert(static_cast<int>(LogLevel::kOff) == static_cast<int>(spdlog::level::off));
  return static_cast<spdlog::level::level_enum>(level);
}

// Hands the bare text of each line to a function.
class FunctionSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FunctionSink(std::function<void(std::string_view)> function) : function_(std::move(function)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    function_(std::string_view(message.payload.data(), message.payload.size()));
  }
  void flush_() override {}

  std::function<void(std::string_view)> function_;
};

struct ProcessSink {
  std::mutex mutex;
  std::shared_ptr<const LogSink> sink;
};

ProcessSink& process_sink() {
  static auto* const state = new ProcessSink;  // never destroyed: lines may come at the very end
  return *state;
}

std::shared_ptr<const LogSink> find_process_sink() {
  const std::lock_guard lock(process_sink().mutex);
  return process_sink().sink;
}

}  // namespace

void set_log_sink(LogSink sink) {
  const std::lock_guard lock(process_sink().mutex);
  process_sink().sink = sink ? std::make_shared<const LogSink>(std::move(sink)) : nullptr;
}

LogLevel log_level(const Environment& environment, LogLevel fallback) {
  for (const char* variable : {"HASTEN_LOG_LEVEL", "ACCELERATE_LOG_LEVEL"}) {
    if (const auto word = environment.choice(variable, kLevelNames)) {
      const auto found = std::find(kLevelNames.begin(), kLevelNames.end(), *word);
      return static_cast<LogLevel>(found - kLevelNames.begin());
    }
  }
  return fallback;
}

struct Logger::Impl {
  LogIdentity identity;
  std::string prefix;
  spdlog::logger logger;
  std::function<void(LogLevel, std::string_view)> observer;
  bool is_redirected = false;
  std::mutex seen_mutex;
  std::set<std::string> seen;

  Impl(const std::string& name, LogIdentity who)
      : identity(std::move(who)),
        prefix(message_prefix({name, identity.rank, identity.world_size})),
        logger(name, std::make_shared<spdlog::sinks::stderr_color_sink_mt>()) {
    logger.set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
  }

  void write(LogLevel level, std::string_view line) {
    const auto sink = is_redirected ? nullptr : find_process_sink();
    if (!sink) {
      logger.log(to_spdlog(level), "{}{}", prefix, line);
    } else if (logger.should_log(to_spdlog(level))) {
      (*sink)(level, prefix + std::string(line));
    }
  }
};

Logger::Logger(std::string name, LogIdentity identity, std::optional<LogLevel> level)
    : impl_(std::make_shared<Impl>(name, std::move(identity))) {
  impl_->logger.set_level(to_spdlog(level ? *level : log_level(Environment::current())));
}

bool Logger::enabled(LogLevel level) const {
  return impl_->logger.should_log(to_spdlog(level));
}

void Logger::set_level(LogLevel level) const {
  impl_->logger.set_level(to_spdlog(level));
}

void Logger::on_warning(std::function<void(LogLevel, std::string_view)> observer) {
  impl_->observer = std::move(observer);
}

void Logger::log(LogLevel level, std::string_view line, LogOptions options) const {
  Impl& impl = *impl_;
  // spdlog drops the line if the level is off. The barriers of an in_order line are passed all the same, since the
  // level may differ between ranks.
  const auto write = [&] {
    impl.write(level, line);
    if (level >= LogLevel::kWarning && impl.observer && enabled(level)) impl.observer(level, line);
  };
  if (options.in_order && impl.identity.world_size > 1) {
    if (!impl.identity.barrier) {
      throw UsageError({"log", impl.identity.rank, impl.identity.world_size},
                       "in_order needs a logger that can wait for the other ranks. Make it with "
                       "Accelerator::logger or process::Process::logger.");
    }
    for (int rank = 0; rank < impl.identity.world_size; ++rank) {
      if (rank == impl.identity.rank) {
        write();
        impl.logger.flush();
      }
      impl.identity.barrier();
    }
    return;
  }
  if (!options.main_process_only || impl.identity.rank == 0) write();
}

void Logger::warning_once(const std::string& line, LogOptions options) const {
  {
    const std::lock_guard lock(impl_->seen_mutex);
    if (!impl_->seen.insert(line).second) return;
  }
  warning(line, options);
}

void Logger::redirect(std::function<void(std::string_view)> sink) {
  impl_->is_redirected = true;
  impl_->logger.sinks() = {std::make_shared<FunctionSink>(std::move(sink))};
}

}  // namespace hasten
