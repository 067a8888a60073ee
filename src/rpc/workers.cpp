// See workers.h.
#include "rpc/workers.h"

#include <algorithm>
#include <cctype>
#include <mutex>
#include <sstream>

#include "hasten/core/text.h"

namespace hasten::rpc {
namespace {

constexpr size_t kLongestName = 127;

bool is_good_name(const std::string& name) {
  return !name.empty() && name.size() <= kLongestName && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return (c < 128 && std::isalnum(c) != 0) || c == '_' || c == ':' || c == '-';
  });
}

}  // namespace

std::string about_worker(const WorkerDevices& devices, const std::vector<AboutFunction>& functions) {
  std::string lines = text(devices.name, '\t', devices.second_name, '\n', device_lines(devices), '\n');
  for (const auto& one : functions) lines += text(one.name, '\t', one.signature, '\t', one.idempotent ? 1 : 0, '\n');
  return lines;
}

bool Workers::knows(int rank) const {
  return rank >= 0 && rank < size() && (*this)[rank].state != RemoteWorker::State::kUnknown;
}

bool Workers::add(int rank, const std::string& about) {
  table_.grow_to(static_cast<size_t>(rank) + 1);
  RemoteWorker& worker = (*this)[rank];
  std::istringstream lines(about);
  std::string line;
  std::getline(lines, line);
  const size_t names_end = line.rfind('\t');
  worker.devices.name = line.substr(0, names_end);
  worker.devices.second_name = line.substr(names_end + 1);
  worker.info = {worker.devices.name, rank};
  while (std::getline(lines, line) && !line.empty()) take_device_line(line, worker.devices);
  for (uint32_t index = 0; std::getline(lines, line);) {
    const size_t tab = line.find('\t'), end = line.rfind('\t');
    worker.names.push_back(std::make_unique<std::string>(line.substr(0, tab)));
    const std::string signature = line.substr(tab + 1, end - tab - 1);
    worker.functions.emplace(*worker.names.back(), RemoteWorker::Function{index++, detail::signature_hash(signature),
                                                                          signature, line.substr(end + 1) == "1"});
  }
  worker.state = RemoteWorker::State::kHere;
  const std::unique_lock lock(mutex_);
  if (!worker.devices.second_name.empty()) by_second_name_.emplace(worker.devices.second_name, rank);
  const auto [known, is_new] = by_name_.emplace(worker.info.name, rank);
  if (is_new) return true;
  if (is_here(known->second)) return false;
  known->second = rank;  // in the place of one that is gone
  return true;
}

void Workers::remove(int rank, RemoteWorker::State state) {
  table_.grow_to(static_cast<size_t>(rank) + 1);
  (*this)[rank].state = state;
  const std::string& name = (*this)[rank].info.name;
  const std::unique_lock lock(mutex_);
  const auto known = by_name_.find(name);
  if (known == by_name_.end() || known->second != rank) return;
  for (int other = 0; other < size(); ++other) {
    if (is_here(other) && (*this)[other].info.name == name) known->second = other;
  }
}

std::optional<int> Workers::find(const std::string& name) const {
  const std::shared_lock lock(mutex_);
  for (const auto* names : {&by_name_, &by_second_name_}) {
    if (const auto found = names->find(name); found != names->end()) return found->second;
  }
  return std::nullopt;
}

std::vector<int> Workers::ranks() const {
  std::vector<int> all;
  for (int rank = 0; rank < size(); ++rank) {
    if (is_here(rank)) all.push_back(rank);
  }
  return all;
}

std::vector<std::string> Workers::names() const {
  std::vector<std::string> all;
  for (const int rank : ranks()) all.push_back((*this)[rank].info.name);
  return all;
}

std::string Workers::problems() const {
  std::string problems;
  std::map<std::string, std::vector<int>> by_name;
  std::vector<WorkerDevices> devices;
  for (const int rank : ranks()) {
    const RemoteWorker& worker = (*this)[rank];
    if (!is_good_name(worker.info.name)) {
      problems += text(" The name of rank ", rank, " is '", worker.info.name, "'; expected 1 to ", kLongestName,
                       " characters of A-Z a-z 0-9 _ : -.");
    }
    by_name[worker.info.name].push_back(rank);
    devices.push_back(worker.devices);
  }
  for (const auto& [name, ranks] : by_name) {
    if (ranks.size() > 1) problems += text(" Ranks ", join(ranks), " have one name, '", name, "'.");
  }
  if (!problems.empty()) problems += " Give each RpcOptions::name its own.";
  return problems + device_problems(devices);
}

}  // namespace hasten::rpc
