// The two notations of a configuration file: YAML 1.1 as PyYAML reads and writes it, and JSON.
#pragma once

#include <string>

#include "hasten/core/value.h"

namespace hasten::launcher {

/// Parses `content`. `path` is for messages. Throws: UsageError if it is no YAML of a single document, or repeats a
/// key.
core::Value read_yaml(const std::string& content, const std::string& path);
/// Returns the same for JSON.
core::Value read_json(const std::string& content, const std::string& path);

/// Returns the meaning of a plain (unquoted) scalar of YAML 1.1: `no` is false, `010` is 8, `1e3` is text.
core::Value plain_scalar(const std::string& text);

/// Returns whether YAML 1.1 reads a plain scalar as a date or a time: 2020-01-01. It is text here, and quoted when it
/// is written.
bool is_timestamp(const std::string& text);

/// The error about a file whose notation is broken.
[[noreturn]] void refuse_syntax(const std::string& path, const std::string& reason);

}  // namespace hasten::launcher
