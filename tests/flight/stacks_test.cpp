#include "hasten/flight/stacks.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "hasten/flight/pages.h"
#include "hasten/flight/recorder.h"
#include "hasten/flight/symbols.h"

namespace hasten::flight {

std::mutex stacks_test_mutex;
std::atomic<int> stacks_test_thread{0};

}  // namespace hasten::flight

// Outside of hasten's namespace, as a program's own function.
__attribute__((noinline)) void lock_statistics() {
  hasten::flight::stacks_test_thread = static_cast<int>(syscall(SYS_gettid));
  const std::lock_guard lock(hasten::flight::stacks_test_mutex);
  asm volatile("");
}
__attribute__((noinline)) void count_for_ever(std::atomic<bool>& stop) {
  hasten::flight::stacks_test_thread = static_cast<int>(syscall(SYS_gettid));
  while (!stop) asm volatile("");
}

namespace hasten::flight {
namespace {

std::string stack_of(int thread, Recorder& recorder) {
  take_stacks(recorder.page().answer);
  for (const StackState& stack : PageView(recorder.descriptor()).stacks()) {
    if (stack.thread == thread) return stack_text(getpid(), stack);
  }
  return "no answer";
}

TEST(Stacks, AThreadInALockAndOneThatComputesAreFoundByName) {
  ASSERT_TRUE(install_stack_handler(default_stack_signal()));
  Recorder recorder({.run = "r"});
  stacks_test_mutex.lock();
  stacks_test_thread = 0;
  std::thread sleeper(lock_statistics);
  while (stacks_test_thread == 0) std::this_thread::yield();
  std::string found;
  for (int i = 0; i < 1000 && found.find("lock_statistics") == std::string::npos; ++i) {
    found = stack_of(stacks_test_thread, recorder);
  }
  stacks_test_mutex.unlock();
  sleeper.join();
  EXPECT_NE(found.find("lock_statistics ("), std::string::npos) << found;

  std::atomic<bool> stop{false};
  stacks_test_thread = 0;
  std::thread counter([&] { count_for_ever(stop); });
  while (stacks_test_thread == 0) std::this_thread::yield();
  const std::string counting = stack_of(stacks_test_thread, recorder);
  stop = true;
  counter.join();
  EXPECT_TRUE(counting.starts_with("count_for_ever (")) << counting;
}

TEST(Stacks, AThreadThatBlocksTheSignalIsNotWaitedForForEver) {
  ASSERT_TRUE(install_stack_handler(default_stack_signal()));
  Recorder recorder({.run = "r"});
  std::atomic<int> state{0};
  std::thread deaf([&] {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
    state = static_cast<int>(syscall(SYS_gettid));
    state.wait(state);
  });
  int thread = 0;
  while ((thread = state) == 0) std::this_thread::yield();

  EXPECT_EQ(stack_of(thread, recorder), "no answer");

  state = 1;
  state.notify_all();
  deaf.join();
}

TEST(Stacks, AHandlerOfTheProgramStays) {
  const int signal = SIGRTMIN + 6;
  ::signal(signal, [](int) {});

  EXPECT_FALSE(install_stack_handler(signal));
  EXPECT_FALSE(install_stack_handler(0));

  ::signal(signal, SIG_DFL);
}

}  // namespace
}  // namespace hasten::flight
