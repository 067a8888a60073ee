// See proc.h.
#include "flight/proc.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <climits>
#include <cstdlib>

#include "hasten/core/number.h"
#include "hasten/core/text.h"

namespace hasten::flight {

std::string read_text(const std::string& path, size_t most) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return "";
  std::string all;
  char part[4096];
  ssize_t count = 0;
  while (all.size() < most && (count = read(file, part, sizeof part)) > 0) all.append(part, static_cast<size_t>(count));
  close(file);
  return all;
}

std::string read_link(const std::string& path) {
  char target[PATH_MAX];
  const ssize_t length = readlink(path.c_str(), target, sizeof target);
  return length > 0 ? std::string(target, static_cast<size_t>(length)) : "";
}

std::vector<int> numbers_in(const std::string& folder) {
  std::vector<int> numbers;
  DIR* const all = opendir(folder.c_str());
  if (all == nullptr) return numbers;
  while (const dirent* entry = readdir(all)) {
    const std::string_view name = entry->d_name;
    int number = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (error == std::errc() && end == name.data() + name.size()) numbers.push_back(number);
  }
  closedir(all);
  return numbers;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

int64_t number_after(std::string_view text, std::string_view name) {
  for (const std::string_view line : lines_of(text)) {
    if (!line.starts_with(name)) continue;
    const size_t digit = line.find_first_of("0123456789", name.size());
    int64_t number = 0;
    if (digit != std::string_view::npos &&
        std::from_chars(line.data() + digit, line.data() + line.size(), number).ec == std::errc()) {
      return number;
    }
  }
  return -1;
}

// "1234 (a (name)) S 1 …": fields are counted behind the last parenthesis, since names hold anything.
ProcessStat read_stat(const std::string& folder) {
  const std::string line = read_text(folder + "/stat");
  const size_t open = line.find('('), close = line.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close + 2 >= line.size()) return {};
  ProcessStat stat{.state = line[close + 2], .name = line.substr(open + 1, close - open - 1)};
  std::istringstream fields(line.substr(close + 3));
  std::string field;
  for (int number = 4; number <= 22 && fields >> field; ++number) {
    if (number == 14 || number == 15) stat.cpu_ticks += core::whole_number<int64_t>(field).value_or(0);
    if (number == 22) stat.start_ticks = core::whole_number<uint64_t>(field).value_or(0);
  }
  return stat;
}

ProcessStat read_process(pid_t pid) {
  return read_stat(text("/proc/", pid));
}

pid_t tracer_of(pid_t pid) {
  const int64_t tracer = number_after(read_text(text("/proc/", pid, "/status")), "TracerPid:");
  return tracer > 0 ? static_cast<pid_t>(tracer) : 0;
}

std::string program_name(pid_t pid) {
  const auto base = [](std::string path) {
    if (const size_t end = path.rfind(" (deleted)"); end != std::string::npos) path.resize(end);
    return path.substr(path.rfind('/') + 1);
  };
  const std::string program = base(read_link(text("/proc/", pid, "/exe")));
  if (!program.starts_with("python")) return program;
  std::istringstream words(read_text(text("/proc/", pid, "/cmdline")));
  std::string word;
  while (std::getline(words, word, '\0')) {
    if (word.ends_with(".py")) return base(word);
  }
  return program;
}

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace hasten::flight
