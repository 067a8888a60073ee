// See pickle_finisher.h.
#include "files/python/pickle_finisher.h"

#include <string>
#include <unordered_map>
#include <utility>

#include "hasten/core/text.h"

namespace hasten::files {
namespace {

using Kind = PythonValue::Kind;

std::string key_of(const PythonValue& key) {
  switch (key.kind()) {
    case Kind::kString:
      return text('s', key.as_string());
    case Kind::kInt:
      return text('i', key.int_text());
    case Kind::kBool:
      return key.as_bool() ? "i1" : "i0";
    case Kind::kBytes:
      return text('b', key.as_bytes());
    default:
      return "";
  }
}

/// Keeps, of pairs with equal keys, the first place and the last value.
void merge_equal_keys(PythonValue::Pairs& pairs) {
  std::unordered_map<std::string, size_t> first;
  size_t kept = 0;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const std::string key = key_of(pairs[i].first);
    const auto [at, fresh] = key.empty() ? std::pair(first.end(), true) : first.emplace(key, kept);
    if (!fresh) {
      pairs[at->second].second = std::move(pairs[i].second);
      continue;
    }
    if (kept != i) pairs[kept] = std::move(pairs[i]);
    ++kept;
  }
  pairs.resize(kept);
}

}  // namespace

void PickleFinisher::finish(PythonValue& root) {
  visit(root);
  while (!frames_.empty()) {
    if (frames_.back().next == frames_.back().children.size()) {
      open_.erase(frames_.back().identity);
      frames_.pop_back();
      continue;
    }
    PythonValue* const child = frames_.back().children[frames_.back().next++];
    visit(*child);
  }
}

void PickleFinisher::visit(PythonValue& value) {
  if (!is_container(value)) return;
  const void* identity = value.identity();
  if (open_.contains(identity)) {
    value = PythonValue::cycle();
    return;
  }
  if (!done_.insert(identity).second) return;
  open_.insert(identity);
  if (value.is_mapping()) merge_equal_keys(value.as_pairs());
  Frame frame{.identity = identity, .children = {}};
  for_each_child(value, [&](PythonValue& child) {
    if (is_container(child)) frame.children.push_back(&child);
  });
  frames_.push_back(std::move(frame));
}

}  // namespace hasten::files
