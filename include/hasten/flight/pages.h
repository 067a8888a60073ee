// Finding and reading the pages of this user's processes.
//
// A page is found by the links in /proc/PID/fd. It stays readable when its process is gone. Readers skip a record that
// is being written and check every number, so that a page of nonsense gives a line and no crash.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hasten/core/memory_file.h"
#include "hasten/flight/page.h"
#include "hasten/flight/recorder.h"
#include "hasten/flight/snapshot.h"

namespace hasten::flight {

/// A thread's stack as its page has it.
struct StackState {
  int thread = 0;
  std::vector<uint64_t> frames = {};   ///< by the unwinder, innermost first
  std::vector<uint64_t> scanned = {};  ///< return addresses of the program that lie on the stack
};

/// A rank's answer to a wish for a profile.
struct WishAnswer {
  WishState state = WishState::kNone;
  std::string words = {};
};

/// A page of any process, mapped here.
class PageView {
 public:
  /// Maps the page behind a descriptor or a path such as /proc/PID/fd/N. Throws: std::runtime_error if it is none.
  explicit PageView(const std::string& path);
  explicit PageView(int descriptor);

  /// The same file has the same number.
  uint64_t file() const noexcept { return file_; }
  Page& page() const noexcept { return *page_; }
  pid_t pid() const noexcept;

  /// Returns the values as they are now, and how the process stands.
  RankState read() const;
  /// The longest time that a thread of the rank has been waiting in a call, and the time since the last progress.
  /// Cheap, for a look each second.
  double longest_wait_s() const;
  double progress_s() const;
  double heartbeat_s() const;
  int64_t step() const noexcept;
  PageState state() const noexcept;

  /// Asks the rank's watch thread for stacks and facts; wakes it.
  void ask() const;
  bool has_answered() const;
  std::vector<StackState> stacks() const;
  Facts facts() const;

  /// Asks the rank for a profile of its next steps. Its `number` is not used.
  void wish(const TraceWish& requested) const;
  WishAnswer wish_answer() const;

 private:
  void take(int descriptor);
  Mapping mapping_;
  Page* page_ = nullptr;
  uint64_t file_ = 0;
};

struct FoundPages {
  std::vector<PageView> pages = {};
  std::vector<std::string> problems = {};  ///< pages that cannot be read, each a sentence
};

/// Returns all pages of this user on this host, each once.
FoundPages find_pages();

/// The memory that a process has in use; 0 if it is gone.
int64_t resident_bytes(pid_t pid);

/// Asks those of the pages whose processes run, and waits until they have answered, `limit_s` at most.
void ask_all(const std::vector<const PageView*>& pages, double limit_s);

}  // namespace hasten::flight
