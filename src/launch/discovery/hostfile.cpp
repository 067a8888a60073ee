// See hostfile.h.
#include "hasten/launch/discovery/hostfile.h"

#include <algorithm>
#include <sstream>

#include "hasten/core/error.h"
#include "hasten/core/number.h"

namespace hasten::launcher {
namespace {

bool is_slot_number(const std::string& word) {
  return !word.empty() && word.size() < 7 && word.find_first_not_of("0123456789") == std::string::npos;
}

int number_of(const std::string& slot) {
  return core::whole_number<int>(slot).value();
}

std::vector<std::string> words_between(const std::string& text, char separator) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; std::getline(stream, word, separator);) words.push_back(word);
  return words;
}

struct NamedHost {
  std::string name;
  std::vector<int> slots;  // all if empty
};

// Applies a filter to the existing machines.
std::vector<NamedHost> read_filter(const std::string& filter, const std::string& option,
                                   const std::vector<Host>& hosts) {
  std::vector<std::string> names;
  for (const Host& host : hosts) names.push_back(host.name);
  std::vector<NamedHost> named;
  for (const std::string& part : words_between(filter, '@')) {
    const size_t colon = std::min(part.find(':'), part.size());
    NamedHost one{part.substr(0, colon), {}};
    const auto host = std::find(names.begin(), names.end(), one.name);
    if (host == names.end()) {
      const std::string guess = did_you_mean(one.name, names);
      throw UsageError({"launch"}, option, " '", filter, "' names '", one.name, "', which is none of ", join(names),
                       guess.empty() ? "." : guess, " Expected HOST or HOST:SLOT,… with @ between them.");
    }
    const int num_slots = hosts[static_cast<size_t>(host - names.begin())].num_slots;
    for (const std::string& slot : words_between(part.substr(std::min(colon + 1, part.size())), ',')) {
      if (!is_slot_number(slot) || number_of(slot) >= num_slots) {
        throw UsageError({"launch"}, option, " '", filter, "' names slot '", slot, "' of ", one.name, ", which has ",
                         num_slots, ", counted from 0.");
      }
      one.slots.push_back(number_of(slot));
    }
    std::sort(one.slots.begin(), one.slots.end());
    one.slots.erase(std::unique(one.slots.begin(), one.slots.end()), one.slots.end());
    named.push_back(std::move(one));
  }
  return named;
}

std::vector<int> all_slots(const Host& host) {
  std::vector<int> slots;
  for (int slot = 0; slot < host.num_slots; ++slot) slots.push_back(slot);
  return slots;
}

}  // namespace

std::vector<Host> read_hostfile(const std::string& content, const std::string& path) {
  std::vector<Host> hosts;
  std::istringstream lines(content);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::istringstream words(line.substr(0, line.find('#')));
    std::string name, slots, more;
    if (!(words >> name)) continue;
    const bool good = words >> slots && !(words >> more) && slots.starts_with("slots=") &&
                      is_slot_number(slots.substr(6)) && number_of(slots.substr(6)) > 0;
    if (!good) throw UsageError({"launch"}, path, ":", number, ": '", line, "' is not 'HOST slots=NUMBER'.");
    for (const Host& other : hosts) {
      if (other.name == name)
        throw UsageError({"launch"}, path, ":", number, ": '", name, "' is there twice. Add its slots up.");
    }
    hosts.push_back({name, number_of(slots.substr(6))});
  }
  if (hosts.empty()) throw UsageError({"launch"}, path, " names no machine. Expected lines 'HOST slots=NUMBER'.");
  return hosts;
}

std::vector<ChosenHost> choose_hosts(const std::vector<Host>& hosts, const std::string& include,
                                     const std::string& exclude) {
  if (!include.empty() && !exclude.empty())
    throw UsageError({"launch"}, "--include and --exclude exclude each other; give one.");
  const auto included = read_filter(include, "--include", hosts);
  const auto excluded = read_filter(exclude, "--exclude", hosts);
  std::vector<ChosenHost> chosen;
  for (const Host& host : hosts) {
    const auto find = [&](const std::vector<NamedHost>& list) {
      const auto found =
          std::find_if(list.begin(), list.end(), [&](const NamedHost& one) { return one.name == host.name; });
      return found == list.end() ? nullptr : &*found;
    };
    const NamedHost* in = find(included);
    const NamedHost* out = find(excluded);
    if ((!include.empty() && in == nullptr) || (out != nullptr && out->slots.empty())) continue;
    ChosenHost one{host.name, all_slots(host)};
    if (in != nullptr && !in->slots.empty()) one = {host.name, in->slots, true};
    if (out != nullptr) {
      one.named = true;
      std::erase_if(one.slots, [&](int slot) {
        return std::find(out->slots.begin(), out->slots.end(), slot) != out->slots.end();
      });
    }
    if (!one.slots.empty()) chosen.push_back(std::move(one));
  }
  if (chosen.empty()) throw UsageError({"launch"}, "the filters --include and --exclude leave no machine and no slot.");
  return chosen;
}

}  // namespace hasten::launcher
