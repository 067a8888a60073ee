// The sink of all loggers of the process: a program that has a log of its own takes hasten's lines into it.
//
// Standard error has them otherwise. Loggers that are redirected (Logger::redirect) keep to their own sink.
#pragma once

#include <functional>
#include <string_view>

namespace hasten {

enum class LogLevel;  // hasten/core/log.h

/// Takes a line "[name] rank 1/4: text" without a time stamp, on the thread that writes it, from several threads at
/// once. It may not write to a logger.
using LogSink = std::function<void(LogLevel level, std::string_view line)>;

/// Hands the lines of all loggers to `sink` in the place of standard error; null: to standard error again. A line that
/// is being written may still reach the sink before.
void set_log_sink(LogSink sink);

}  // namespace hasten
