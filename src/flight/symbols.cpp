// See symbols.h.
#include "hasten/flight/symbols.h"

#include <cxxabi.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>

#include "flight/elf.h"
#include "flight/proc.h"
#include "hasten/core/text.h"
#include "hasten/flight/recorder.h"

namespace hasten::flight {
namespace {

constexpr double kLineLimit = 2;  // seconds for addr2line, which reads all of a program's debug information

struct Part {
  uint64_t begin = 0, end = 0, offset = 0;
  std::string path = {};
};

std::vector<Part> code_of(pid_t pid) {
  std::vector<Part> parts;
  const std::string maps = read_text(text("/proc/", pid, "/maps"), 16 << 20);
  for (const std::string_view line : lines_of(maps)) {
    Part part;
    char access[5] = {};
    int path = 0;
    const std::string one(line);
    if (std::sscanf(one.c_str(), "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %*s %*s %n", &part.begin, &part.end, access,
                    &part.offset, &path) < 4 ||
        access[2] != 'x' || path == 0) {
      continue;
    }
    part.path = one.substr(static_cast<size_t>(path));
    if (part.path.starts_with("/")) parts.push_back(part);
  }
  return parts;
}

std::string demangled(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> words(abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status),
                                                     std::free);
  return status == 0 ? words.get() : name;
}

// Standard output of a program, which gets `kLineLimit` and is killed then. "" if it cannot be started.
std::string output_of(std::vector<std::string> words) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return "";
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  char* no_variables[] = {nullptr};
  pid_t child = 0;
  const bool started = posix_spawn(&child, words[0].c_str(), &actions, nullptr, arguments.data(), no_variables) == 0;
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  std::string all;
  const int64_t deadline = now_ns() + static_cast<int64_t>(kLineLimit * 1e9);
  while (started) {
    pollfd source{ends[0], POLLIN, 0};
    const auto left = static_cast<int>((deadline - now_ns()) / 1'000'000);
    if (left <= 0 || poll(&source, 1, left) <= 0) break;
    char part[4096];
    const ssize_t count = read(ends[0], part, sizeof part);
    if (count <= 0) break;
    all.append(part, static_cast<size_t>(count));
  }
  close(ends[0]);
  if (started) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  return all;
}

// "loss.cpp:58" for each address of the program's own numbering; "" where it is unknown.
std::vector<std::string> lines_in(const std::string& path, const std::vector<uint64_t>& addresses) {
  std::vector<std::string> places(addresses.size());
  const char* const tool = "/usr/bin/addr2line";
  if (access(tool, X_OK) != 0) return places;
  std::vector<std::string> words = {tool, "-s", "-e", path};
  for (const uint64_t address : addresses) {
    std::array<char, 32> digits = {};
    std::snprintf(digits.data(), digits.size(), "0x%" PRIx64, address);
    words.emplace_back(digits.data());
  }
  const std::string all = output_of(std::move(words));
  const auto lines = lines_of(all);
  for (size_t i = 0; i < std::min(lines.size(), places.size()); ++i) {
    const std::string line(lines[i].substr(0, lines[i].find(' ')));
    if (line.find('?') == std::string::npos) places[i] = line;
  }
  return places;
}

bool is_of_a_library(const std::string& function) {
  static const std::vector<std::string> spaces = {
      "hasten::", "std::", "c10::", "at::", "torch::", "caffe2::", "__gnu_cxx::", "testing::", "mkl_", "dnnl::"};
  if (function.empty() || function.starts_with("_") || function == "hasten_take_stack") return true;
  return std::any_of(spaces.begin(), spaces.end(),
                     [&](const std::string& space) { return function.starts_with(space); });
}

}  // namespace

std::string short_name(std::string_view name) {
  std::string plain;
  int depth = 0;
  for (size_t i = 0; i < name.size(); ++i) {
    const std::string_view rest = name.substr(i);
    for (const std::string_view word :
         {"(anonymous namespace)", "operator()", "operator<<", "operator<", "operator->"}) {
      if (depth != 0 || !rest.starts_with(word)) continue;
      plain += word;
      i += word.size();
      break;
    }
    if (i >= name.size()) break;
    const char c = name[i];
    if (c == '(' || c == '<') ++depth;
    if (depth == 0) plain += c;
    if (c == ')' || c == '>') --depth;
  }
  for (const std::string_view end : {" const", "[abi:cxx11]"}) {
    if (const size_t at = plain.rfind(end); at != std::string::npos && at + end.size() == plain.size())
      plain.resize(at);
  }
  const size_t blank = plain.find("(anonymous") == std::string::npos ? plain.rfind(' ') : std::string::npos;
  if (blank != std::string::npos && plain.find("operator") == std::string::npos) plain = plain.substr(blank + 1);
  return plain;
}

std::vector<Frame> name_addresses(pid_t pid, const std::vector<uint64_t>& addresses) {
  std::vector<Frame> frames(addresses.size());
  const std::string program = read_link(text("/proc/", pid, "/exe"));
  std::map<std::string, std::vector<std::pair<size_t, uint64_t>>> by_file;  // place, offset
  const auto parts = code_of(pid);
  for (size_t i = 0; i < addresses.size(); ++i) {
    for (const Part& part : parts) {
      if (addresses[i] < part.begin || addresses[i] >= part.end) continue;
      by_file[part.path].emplace_back(i, addresses[i] - part.begin + part.offset);
    }
  }
  for (const auto& [path, places] : by_file) {
    // The program's file may have been built anew; what runs is behind the link.
    const bool is_program = path == program;
    const std::string readable = is_program ? text("/proc/", pid, "/exe") : path;
    const ElfFile file(readable);
    std::vector<uint64_t> own;
    for (const auto& [_, offset] : places) own.push_back(file.address_of(offset));
    const auto names = file.functions(own);
    const auto lines = is_program && file.has_lines() ? lines_in(readable, own) : std::vector<std::string>(own.size());
    for (size_t k = 0; k < places.size(); ++k) {
      Frame& frame = frames[places[k].first];
      frame.function = names[k].empty() ? "" : short_name(demangled(names[k]));
      frame.place = lines[k].empty() ? path.substr(path.rfind('/') + 1) : lines[k];
      frame.in_program = is_program;
    }
  }
  return frames;
}

std::string device_wait(const std::vector<std::string>& functions) {
  // Where the runtime's own names are hidden, libtorch's stand for them.
  static const std::set<std::string> waits = {"cudaStreamSynchronize",
                                              "cudaEventSynchronize",
                                              "cudaDeviceSynchronize",
                                              "cudaMemcpy",
                                              "cudaMemcpyAsync",
                                              "cuStreamSynchronize",
                                              "cuEventSynchronize",
                                              "cuCtxSynchronize",
                                              "c10::cuda::CUDAStream::synchronize",
                                              "c10::cuda::memcpy_and_sync",
                                              "c10::cuda::stream_synchronize",
                                              "c10::cuda::device_synchronize"};
  const auto has = [&](const std::string& part) {
    return std::any_of(functions.begin(), functions.end(),
                       [&](const std::string& name) { return name.find(part) != std::string::npos; });
  };
  const auto found =
      std::find_if(functions.begin(), functions.end(), [](const std::string& name) { return waits.contains(name); });
  if (found == functions.end()) return "";
  std::string what = "a stream of its device";
  if (has("DeviceSynchronize") || has("device_synchronize") || has("cuCtxSynchronize")) what = "its device";
  if (has("EventSynchronize")) what = "an event of its device";
  if (has("_local_scalar_dense")) {
    what = "a value from its device";
  } else if (has("copy_")) {
    what = "a copy from or to its device";
  }
  return text(what, " (", *found, ')');
}

std::string stack_text(pid_t pid, const StackState& stack, size_t most) {
  return name_stack(pid, stack, most).text;
}

StackWords name_stack(pid_t pid, const StackState& stack, size_t most) {
  std::vector<uint64_t> addresses;
  // An address behind a call may be the next line's, or another function's.
  for (const uint64_t frame : stack.frames) addresses.push_back(frame - 1);
  for (const uint64_t frame : stack.scanned) addresses.push_back(frame - 1);
  const auto frames = name_addresses(pid, addresses);
  std::vector<std::string> own, others;
  std::vector<std::string> unwound;
  for (size_t i = 0; i < stack.frames.size(); ++i) unwound.push_back(frames[i].function);
  std::string last;
  for (size_t i = 0; i < frames.size(); ++i) {
    const Frame& frame = frames[i];
    const bool scanned = i >= stack.frames.size();
    if (scanned && !own.empty() && own.back()[0] != '~') break;  // unwinding found the program
    if (frame.function.empty() || frame.function == "hasten_take_stack") continue;
    const std::string words = text(scanned ? "~" : "", frame.function, " (", frame.place, ')');
    const bool is_own = frame.in_program && !is_of_a_library(frame.function);
    if (words == last) continue;
    last = words;
    (is_own ? own : others).push_back(words);
  }
  auto& shown = own.empty() ? others : own;
  if (shown.size() > most) shown.resize(most);
  return {join(shown, " < "), device_wait(unwound)};
}

}  // namespace hasten::flight
