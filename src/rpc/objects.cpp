// See objects.h.
#include "rpc/objects.h"

#include <utility>

#include "hasten/core/text.h"

namespace hasten::rpc {

detail::Object Objects::remove_if_free(std::map<ObjectId, Entry>::iterator entry) {
  Entry& known = entry->second;
  const bool may_come = !known.ready && (known.expected || !lost_.contains(entry->first.creator));
  if (may_come || known.num_local > 0 || !known.holders.empty()) return {};
  detail::Object ended = std::move(known.found.object);
  entries_.erase(entry);
  return ended;
}

bool Objects::expect(ObjectId id) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[id];
  if (std::exchange(entry.expected, true)) return false;
  entry.holders.grant({id.creator, id.number}, static_cast<int>(id.creator));
  return true;
}

void Objects::settle(ObjectId id, Found found) {
  std::vector<std::function<void(const Found&)>> waiting;
  detail::Object ended;
  Found copy;
  {
    const std::lock_guard lock(mutex_);
    const auto entry = entries_.try_emplace(id).first;
    if (entry->second.ready) return;
    entry->second.ready = true;
    entry->second.found = std::move(found);
    copy = entry->second.found;
    waiting.swap(entry->second.waiting);
    ended = remove_if_free(entry);
  }
  for (auto& then : waiting) then(copy);
}

void Objects::store(ObjectId id, detail::Object object) {
  settle(id, {std::move(object), nullptr});
}

void Objects::fail(ObjectId id, std::exception_ptr error) {
  settle(id, {{}, std::move(error)});
}

void Objects::when_ready(ObjectId id, std::function<void(const Found&)> then) {
  Found found;
  std::exception_ptr never_comes;
  {
    const std::lock_guard lock(mutex_);
    Entry& entry = entries_[id];
    const auto lost = lost_.find(id.creator);
    if (entry.ready) {
      found = entry.found;
    } else {
      entry.waiting.push_back(std::exchange(then, nullptr));
      if (!entry.expected && lost != lost_.end()) never_comes = lost->second;
    }
  }
  if (then) then(found);
  if (never_comes) fail(id, never_comes);
}

std::shared_ptr<Strand> Objects::strand(ObjectId id) {
  const std::lock_guard lock(mutex_);
  auto& strand = entries_[id].strand;
  if (!strand) strand = std::make_shared<Strand>(pool_);
  return strand;
}

void Objects::grant(ObjectId id, const Grant& grant, int holder, bool by_holder) {
  detail::Object ended;
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.try_emplace(id).first;
  if (by_holder) {
    entry->second.holders.confirm(grant, holder);
  } else {
    entry->second.holders.grant(grant, holder);
  }
  ended = remove_if_free(entry);  // the drop may have come before
}

void Objects::drop(ObjectId id, const Grant& grant) {
  detail::Object ended;
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.try_emplace(id).first;
  entry->second.holders.drop(grant);
  ended = remove_if_free(entry);
}

void Objects::hold(ObjectId id) {
  const std::lock_guard lock(mutex_);
  ++entries_[id].num_local;
}

void Objects::let_go(ObjectId id) {
  detail::Object ended;
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(id);
  if (entry == entries_.end()) return;
  --entry->second.num_local;
  ended = remove_if_free(entry);
}

void Objects::lose(int worker, const std::exception_ptr& error) {
  std::vector<ObjectId> owed;
  {
    const std::lock_guard lock(mutex_);
    lost_.emplace(static_cast<uint32_t>(worker), error);
    for (const auto& [id, entry] : entries_) {
      if (!entry.expected && !entry.ready && id.creator == static_cast<uint32_t>(worker)) owed.push_back(id);
    }
  }
  for (const ObjectId& id : owed) fail(id, error);
}

void Objects::forget(int worker) {
  std::vector<detail::Object> ended;
  const std::lock_guard lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto next = std::next(entry);
    entry->second.holders.lose(worker);
    ended.push_back(remove_if_free(entry));
    entry = next;
  }
}

size_t Objects::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

std::vector<std::string> Objects::list() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> lines;
  for (const auto& [id, entry] : entries_) {
    const std::string type = entry.found.object.type.empty() ? "a value not yet created" : entry.found.object.type;
    lines.push_back(text(type, " (created by rank ", id.creator, ", ", entry.holders.num_held(), " held elsewhere)"));
  }
  return lines;
}

void Objects::clear() {
  std::map<ObjectId, Entry> ended;
  {
    const std::lock_guard lock(mutex_);
    ended.swap(entries_);
  }
}

}  // namespace hasten::rpc
