// Places and times at which a rank of survived_program.h dies.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "hasten/core/env.h"
#include "hasten/core/strings.h"
#include "hasten/core/text.h"

namespace hasten::survived {

/// True for one process of all.
inline bool take_mark(const std::string& name) {
  const std::string path = std::string(std::getenv("TMPDIR")) + "/mark_" + name;
  const int file = open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
  if (file >= 0) close(file);
  return file >= 0;
}

inline int own_rank() {
  return static_cast<int>(Environment::current().integer("RANK").value_or(0));
}

/// True if this process is to die at this place, where it comes once more.
inline bool is_due(const std::string& place) {
  static std::map<std::string, int> times;
  static const std::vector<std::string> deaths =
      core::split(Environment::current().text("SURVIVE_DIES").value_or(""), ',');
  const std::string here = text(own_rank(), '@', place, ':', ++times[place]);
  for (const std::string& death : deaths) {
    if (death == here && take_mark(death)) return true;
    if (death == here + "!") _exit(1);
  }
  return false;
}

/// A place at which a rank may die.
inline void pass(const std::string& place) {
  if (is_due(place)) kill(getpid(), SIGKILL);
}

/// Places in a save: "writing", once a first file of it is there, and "committing", once its last one is.
inline void pass_save(const std::string& folder) {
  const bool at_first = is_due("writing"), at_last = is_due("committing");
  if (!at_first && !at_last) return;
  std::thread([folder, at_last] {
    const auto is_there = [&] {
      std::error_code gone;
      if (at_last) return std::filesystem::exists(folder + "/manifest.json", gone);
      return !std::filesystem::is_empty(folder, gone) || gone;
    };
    while (std::filesystem::exists(folder) && !is_there()) std::this_thread::yield();
    kill(getpid(), SIGKILL);
  }).detach();
}

/// This process has another's place, and its first backward with all ranks is not done yet.
inline std::atomic<bool>& is_newcomer() {
  static std::atomic<bool> is = false;
  return is;
}

/// Batches of the run so far.
inline std::atomic<int64_t>& batches_now() {
  static std::atomic<int64_t> batches = 0;
  return batches;
}

inline bool has_mark(const std::string& name) {
  return std::filesystem::exists(std::string(std::getenv("TMPDIR")) + "/mark_" + name);
}

inline void take_next_mark(const std::string& name) {
  for (int i = 0; !take_mark(text(name, i)); ++i) {
  }
}

/// True if this rank may die now. A rank with a state may, once the one before it has come back and all have its state.
/// So one rank at least has the state at any time. Others may die at any time.
inline bool may_die() {
  if (batches_now() == 0) return true;
  int next = 0;
  while (has_mark(text("held_", next))) ++next;
  return (next == 0 || has_mark(text("back_", next - 1))) && take_mark(text("held_", next));
}

/// Kills this process at a random time, as long as kills are left and the run is not near its end. The time counts from
/// the start of the process or from its first batch.
inline void start_random_death(int64_t last_batch) {
  const auto words = core::split(Environment::current().text("SURVIVE_KILLS").value_or(""), ':');
  if (words.size() != 2) return;
  const int num_kills = std::stoi(words[0]);
  int starts = 0;
  while (!take_mark(text("start_", own_rank(), '_', starts))) ++starts;
  is_newcomer() = Environment::current().flag("HASTEN_REPLACES").value_or(false);
  std::seed_seq seed{std::stoi(words[1]), own_rank(), starts};
  std::mt19937 random(seed);
  const bool in_loop = std::uniform_int_distribution<int>(0, 2)(random) > 0;
  const auto delay =
      std::chrono::microseconds(std::uniform_int_distribution<int>(0, in_loop ? 60'000 : 900'000)(random));
  std::thread([delay, in_loop, num_kills, last_batch] {
    if (in_loop) batches_now().wait(0);
    std::this_thread::sleep_for(delay);
    while (!may_die()) {
      if (batches_now() >= last_batch) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    for (int i = 0; i < num_kills && batches_now() < last_batch; ++i) {
      if (take_mark(text("kill_", i))) kill(getpid(), SIGKILL);
    }
  }).detach();
}

}  // namespace hasten::survived
