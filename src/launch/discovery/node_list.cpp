// See node_list.h.
#include "hasten/launch/discovery/node_list.h"

#include <algorithm>
#include <optional>
#include <sstream>

#include "hasten/core/error.h"
#include "hasten/core/strings.h"
#include "launch/base/whole_number.h"

namespace hasten::launcher {
namespace {

constexpr int kMostNodes = 1 << 20;

std::optional<int> number_in_list(std::string_view word) {
  const auto number = whole_number(word);
  return number && *number >= 0 ? number : std::nullopt;
}

[[noreturn]] void refuse_node_list(const std::string& node_list, const char* why) {
  throw UsageError({"launch"}, "'", node_list, "' is no list of nodes as Slurm writes them, such as ",
                   "gpu[01-03,7],login2: ", why, ".");
}

// "01-03" is 01 02 03.
void append_range(const std::string& range, const std::string& node_list, std::vector<std::string>& names) {
  const size_t dash = range.find('-');
  const std::string first = range.substr(0, dash);
  const std::string last = dash == std::string::npos ? first : range.substr(dash + 1);
  const auto least = number_in_list(first), most = number_in_list(last);
  if (!least || !most) refuse_node_list(node_list, "brackets hold numbers and ranges of them");
  if (*most < *least || *most - *least >= kMostNodes) refuse_node_list(node_list, "a range goes upwards");
  for (int number = *least; number <= *most; ++number) {
    std::string digits = std::to_string(number);
    if (digits.size() < first.size()) digits.insert(0, first.size() - digits.size(), '0');
    names.push_back(digits);
  }
}

std::vector<std::string> bracketed(const std::string& inside, const std::string& node_list) {
  std::vector<std::string> names;
  for (const std::string& range : core::split(inside, ',')) append_range(range, node_list, names);
  if (names.empty()) refuse_node_list(node_list, "there are empty brackets");
  return names;
}

// An element of the list: text and brackets in turn.
std::vector<std::string> expand_element(const std::string& element, const std::string& node_list) {
  std::vector<std::string> names = {""};
  for (size_t i = 0; i < element.size();) {
    std::vector<std::string> ends;
    if (element[i] == '[') {
      const size_t close = element.find(']', i);
      if (close == std::string::npos) refuse_node_list(node_list, "a bracket is not closed");
      ends = bracketed(element.substr(i + 1, close - i - 1), node_list);
      i = close + 1;
    } else {
      const size_t open = std::min(element.find('[', i), element.size());
      ends = {element.substr(i, open - i)};
      i = open;
    }
    if (names.size() * ends.size() > kMostNodes) refuse_node_list(node_list, "it has more than a million names");
    std::vector<std::string> longer;
    for (const std::string& name : names) {
      for (const std::string& end : ends) longer.push_back(name + end);
    }
    names = std::move(longer);
  }
  return names;
}

}  // namespace

std::vector<std::string> expand_node_list(const std::string& node_list) {
  std::vector<std::string> names;
  std::string element;
  bool inside = false;
  for (const char c : node_list + ",") {
    if (c == '[') inside = true;
    if (c == ']') inside = false;
    if (c != ',' || inside) {
      element += c;
      continue;
    }
    if (element.empty()) refuse_node_list(node_list, "a name is missing");
    for (std::string& name : expand_element(element, node_list)) names.push_back(std::move(name));
    element.clear();
  }
  if (inside) refuse_node_list(node_list, "a bracket is not closed");
  return names;
}

std::vector<int> expand_counts(const std::string& counts) {
  std::vector<int> all;
  for (const std::string& part : core::split(counts, ',')) {
    const size_t times = part.find("(x");
    const auto count = number_in_list(std::string_view(part).substr(0, times));
    auto repeats = std::optional(1);
    if (times != std::string::npos) {
      if (!part.ends_with(')'))
        repeats.reset();
      else
        repeats = number_in_list(std::string_view(part).substr(times + 2, part.size() - times - 3));
    }
    if (!count || !repeats || *repeats > kMostNodes)
      throw UsageError({"launch"}, "'", counts, "' is no list of counts as Slurm writes them, such as 2(x3),1.");
    all.insert(all.end(), static_cast<size_t>(*repeats), *count);
  }
  return all;
}

std::vector<Host> count_names(const std::string& names) {
  std::vector<Host> hosts;
  std::istringstream words(names);
  for (std::string name; words >> name;) {
    const auto known = std::find_if(hosts.begin(), hosts.end(), [&](const Host& host) { return host.name == name; });
    if (known == hosts.end())
      hosts.push_back({name, 1});
    else
      ++known->num_slots;
  }
  return hosts;
}

std::vector<Host> names_with_counts(const std::string& words) {
  std::vector<Host> hosts;
  std::istringstream stream(words);
  std::string count;
  for (std::string name; stream >> name;) {
    const auto slots = stream >> count ? number_in_list(count) : std::nullopt;
    if (!slots) {
      throw UsageError({"launch"}, "'", words, "' is no list of machines with counts as LSF writes it, such as ",
                       "'hostA 4 hostB 8'.");
    }
    hosts.push_back({name, *slots});
  }
  return hosts;
}

}  // namespace hasten::launcher
