// The handler and its data, which is at namespace scope, since a signal is the process's; see stacks.h.
#include "hasten/flight/stacks.h"

#include <execinfo.h>
#include <link.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "flight/proc.h"
#include "hasten/core/text.h"

namespace hasten::flight {
namespace {

constexpr uint64_t kMostScanned = 256 << 10;  // bytes of a stack
constexpr size_t kMostFound = 16;             // addresses of the program

struct Range {
  uint64_t begin = 0, end = 0;
};

/// The handler's inputs. `answer` is null while no stacks are asked for, so a late signal does nothing.
struct Taking {
  std::mutex mutex;
  std::atomic<int> signal{0};
  std::atomic<PageAnswer*> answer{nullptr};
  Range program;                // the code of the program's own file
  std::vector<Range> writable;  // mappings in which stacks lie, ascending
};

Taking& taking() {
  static Taking* const one = new Taking;  // never destroyed: a signal may come at the very end
  return *one;
}

#if defined(__x86_64__)
uint64_t stack_pointer(const void* context) {
  return static_cast<uint64_t>(static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_RSP]);
}
// True if the instruction before this address is a call: e8, or ff /2 in its lengths.
bool follows_call(const unsigned char* at) {
  const auto indirect = [&](int length) { return at[-length] == 0xff && (at[1 - length] >> 3 & 7) == 2; };
  return at[-5] == 0xe8 || indirect(2) || indirect(3) || indirect(4) || indirect(6);
}
#elif defined(__aarch64__)
uint64_t stack_pointer(const void* context) {
  return static_cast<const ucontext_t*>(context)->uc_mcontext.sp;
}
bool follows_call(const unsigned char* at) {
  return (at[-1] & 0xfc) == 0x94 || (at[-1] == 0xd6 && (at[-2] & 0xe0) == 0x20);  // bl, blr
}
#endif

// Reads a stack from its pointer up; no function here takes memory.
size_t scan(const Taking& taking, uint64_t from, PageStack& stack, size_t first) {
  const auto range = std::find_if(taking.writable.begin(), taking.writable.end(),
                                  [&](const Range& one) { return one.begin <= from && from < one.end; });
  if (range == taking.writable.end()) return 0;
  const uint64_t end = std::min(range->end, from + kMostScanned);
  size_t found = 0;
  for (uint64_t at = (from + 7) & ~uint64_t{7}; at + 8 <= end && found < kMostFound; at += 8) {
    const uint64_t value = *reinterpret_cast<const uint64_t*>(at);
    if (value < taking.program.begin + 8 || value >= taking.program.end) continue;
    if (!follows_call(reinterpret_cast<const unsigned char*>(value))) continue;
    stack.frames[first + found++].store(value, kRelaxed);
  }
  return found;
}

extern "C" void hasten_take_stack(int, siginfo_t*, void* context) {
  const int error = errno;
  Taking& taking = flight::taking();
  if (PageAnswer* const answer = taking.answer.load(std::memory_order_acquire)) {
    const uint32_t place = answer->num_stacks.fetch_add(1);
    if (place < kNumStacks) {
      PageStack& stack = answer->stacks[place];
      void* frames[kNumFrames];
      const int unwound = backtrace(frames, kNumFrames - static_cast<int>(kMostFound));
      for (int i = 0; i < unwound; ++i) {
        stack.frames[static_cast<size_t>(i)].store(reinterpret_cast<uint64_t>(frames[i]), kRelaxed);
      }
      const size_t scanned = scan(taking, stack_pointer(context), stack, static_cast<size_t>(unwound));
      stack.num_frames.store(static_cast<uint16_t>(unwound), kRelaxed);
      stack.num_scanned.store(static_cast<uint16_t>(scanned), kRelaxed);
      stack.thread.store(static_cast<uint32_t>(syscall(SYS_gettid)), std::memory_order_release);
    }
    answer->num_done.fetch_add(1, std::memory_order_release);
  }
  errno = error;
}

int take_program_range(dl_phdr_info* info, size_t, void* range) {
  auto& program = *static_cast<Range*>(range);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
    program = {info->dlpi_addr + part.p_vaddr, info->dlpi_addr + part.p_vaddr + part.p_memsz};
  }
  return 1;  // the first is the program itself
}

std::vector<Range> writable_ranges() {
  std::vector<Range> ranges;
  const std::string maps = read_text("/proc/self/maps", 16 << 20);
  for (const std::string_view line : lines_of(maps)) {
    Range range;
    char access[5] = {};
    if (std::sscanf(std::string(line).c_str(), "%" SCNx64 "-%" SCNx64 " %4s", &range.begin, &range.end, access) != 3)
      continue;
    if (access[0] == 'r' && access[1] == 'w') ranges.push_back(range);
  }
  return ranges;
}

}  // namespace

int default_stack_signal() {
  return SIGRTMIN + 5;
}

bool install_stack_handler(int signal) {
  if (signal <= 0) return false;
  Taking& taking = flight::taking();
  const std::lock_guard lock(taking.mutex);
  if (taking.signal.load() == signal) return true;
  struct sigaction now = {};
  if (sigaction(signal, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) return false;
  void* first[2];
  backtrace(first, 2);  // loads the unwinder, which takes memory
  struct sigaction ours = {};
  ours.sa_sigaction = hasten_take_stack;
  ours.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
  sigfillset(&ours.sa_mask);
  if (sigaction(signal, &ours, nullptr) != 0) return false;
  dl_iterate_phdr(take_program_range, &taking.program);
  taking.signal.store(signal);
  return true;
}

int stack_signal() noexcept {
  return taking().signal.load(kRelaxed);
}

void take_stacks(PageAnswer& answer) {
  Taking& taking = flight::taking();
  const std::lock_guard lock(taking.mutex);
  const int signal = taking.signal.load();
  for (PageStack& stack : answer.stacks) stack.thread.store(0, kRelaxed);
  answer.num_stacks.store(0);
  answer.num_done.store(0);
  if (signal == 0) return;
  taking.writable = writable_ranges();
  taking.answer.store(&answer, std::memory_order_release);
  const auto self = static_cast<int>(syscall(SYS_gettid));
  uint32_t signalled = 0;
  for (const int thread : numbers_in("/proc/self/task")) {
    if (thread != self && syscall(SYS_tgkill, getpid(), thread, signal) == 0) ++signalled;
  }
  uint32_t seen = 0;
  auto last = std::chrono::steady_clock::now();
  while (seen < signalled && std::chrono::steady_clock::now() - last < std::chrono::milliseconds(500)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const uint32_t done = answer.num_done.load(std::memory_order_acquire);
    if (done != seen) last = std::chrono::steady_clock::now();
    seen = done;
  }
  taking.answer.store(nullptr, std::memory_order_release);
}

}  // namespace hasten::flight
