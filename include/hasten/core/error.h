// The four exception types of hasten and the one form of their messages.
//
// Like libtorch, hasten reports errors by exception. The type names the party that can mend the error. UsageError: the
// caller. CommError: the network or a peer. DataError: the owner of a file. InternalError: hasten. Every message has
// this form: "[room] rank r/n: what happened, with the values; what was expected. What to do."
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "hasten/core/text.h"

namespace hasten {

/// Where a message comes from: the room, and the rank when there is more than one.
struct Origin {
  std::string_view room;  ///< "comm", "ddp", "data" …
  int rank = 0;
  int world_size = 1;
};

/// "[room] " in a world of one, "[room] rank r/n: " otherwise.
std::string message_prefix(const Origin& origin);

/// Base of everything hasten throws by itself; catch this to separate hasten's errors from libtorch's.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The caller or the configuration is wrong: a bad argument, a contradiction of settings, a call out of
/// order. Programs that end because of one should use exit code 2.
class UsageError : public Error {
 public:
  using Error::Error;
  template <class... Parts>
  explicit UsageError(const Origin& origin, const Parts&... parts) : Error(message_prefix(origin) + text(parts...)) {}
};

/// A peer, the network or a timeout: the operation could not be completed with the other ranks.
class CommError : public Error {
 public:
  /// `origin.rank` is the rank that throws, `operation` what it was doing ("all_reduce").
  template <class... Parts>
  explicit CommError(const Origin& origin, std::string operation, const Parts&... parts)
      : Error(message_prefix(origin) + text(parts...)), rank_(origin.rank), operation_(std::move(operation)) {}

  int rank() const noexcept { return rank_; }
  const std::string& operation() const noexcept { return operation_; }

 private:
  int rank_;
  std::string operation_;
};

/// A file, a dataset or a checkpoint cannot be read as what it should be.
class DataError : public Error {
 public:
  template <class... Parts>
  explicit DataError(const Origin& origin, std::string path, const Parts&... parts)
      : Error(message_prefix(origin) + text(parts...)), path_(std::move(path)) {}

  /// Returns the file or folder of the error, as the caller named it.
  const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
};

/// A promise that hasten makes to itself is broken: please report it with the message.
class InternalError : public Error {
 public:
  using Error::Error;
  template <class... Parts>
  explicit InternalError(const Origin& origin, const Parts&... parts)
      : Error(message_prefix(origin) + text(parts...)) {}
};

}  // namespace hasten
