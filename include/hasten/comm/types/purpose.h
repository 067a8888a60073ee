// Purpose: what the collectives of a thread are for, in words that errors and records show.
//
// "all_reduce of 428 Float" does not help a program that calls no all_reduce. A part of the library that communicates
// opens a scope with its words. A group reads them as a collective begins (group.h), in the caller's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace hasten::comm {

class Purpose {
 public:
  /// Words of a purpose: a literal, and a number behind it if that is 0 or more ("gradients, bucket", 3).
  struct Words {
    const char* text = nullptr;  ///< null: no purpose is given
    int64_t number = -1;
  };

  /// Until it ends, collectives that this thread begins are for `literal`. The innermost scope counts. `literal` is a
  /// string literal; nothing is copied or allocated.
  template <size_t size>
  explicit Purpose(const char (&literal)[size], int64_t number = -1) noexcept : Purpose(Words{literal, number}) {}
  /// The same with words that another thread's scope had.
  explicit Purpose(Words words) noexcept;
  ~Purpose();
  Purpose(const Purpose&) = delete;
  Purpose& operator=(const Purpose&) = delete;

  /// Returns the words of this thread's innermost scope.
  static Words current() noexcept;

 private:
  Words outer_;
};

/// "gradients, bucket 3"; empty without a purpose.
std::string describe(const Purpose::Words& words);

}  // namespace hasten::comm
