// What the benchmark programs share: a clock, a look at this process's memory, the median.
//
// Each program prints one JSON object from the main process; bench/run reads it and compares with the peer's.
#pragma once

#include <algorithm>
#include <chrono>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace bench {

/// Milliseconds that `function()` takes.
template <class Function>
double time_ms(const Function& function) {
  const auto start = std::chrono::steady_clock::now();
  function();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

/// A field of /proc/self/status in MB: VmRSS is the memory in use now, VmHWM the most there ever was.
inline double memory_mb(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(field + ":", 0) == 0) return std::stod(line.substr(field.size() + 1)) / 1024;
  }
  throw std::runtime_error("/proc/self/status has no " + field);
}

/// The proportional set size of this process in MB: a page that n processes share counts 1 / n in each.
inline double pss_mb() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("Pss:", 0) == 0) return std::stod(line.substr(4)) / 1024;
  }
  throw std::runtime_error("/proc/self/smaps_rollup has no Pss");
}

/// Megabytes (10^6) that this process's network namespace has sent, the loopback device aside.
inline double sent_mb() {
  std::ifstream file("/proc/self/net/dev");
  double sum = 0;
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || line.find("lo:") != std::string::npos) continue;
    std::istringstream fields(line.substr(colon + 1));
    double field = 0;
    for (int i = 0; i < 9; ++i) fields >> field;  // the ninth is what was sent
    sum += field / 1e6;
  }
  return sum;
}

/// The median of at least one value.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace bench
