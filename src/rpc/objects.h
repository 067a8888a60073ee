// Objects: the values of this worker that RRefs refer to.
//
// An identity may arrive before its value exists, because the creation comes on another connection: calls on it are
// parked until then. Holders decides when a value ends.
#pragma once

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "hasten/rpc/detail/core.h"
#include "rpc/pool.h"
#include "rpc/reference_holders.h"

namespace hasten::rpc {

class Objects {
 public:
  using ObjectId = detail::ObjectId;
  struct Found {
    detail::Object object;
    std::exception_ptr error;
  };

  explicit Objects(Pool& pool) : pool_(pool) {}

  /// The creation has come: its caller holds the value. Returns false if it has been created already.
  bool expect(ObjectId id);
  void store(ObjectId id, detail::Object object);
  void fail(ObjectId id, std::exception_ptr error);
  /// Runs `then` once the value is there, or why it is not. A value that a lost worker never created fails at once.
  void when_ready(ObjectId id, std::function<void(const Found&)> then);
  /// The calls on one value, one at a time.
  std::shared_ptr<Strand> strand(ObjectId id);

  void grant(ObjectId id, const Grant& grant, int holder, bool by_holder);
  void drop(ObjectId id, const Grant& grant);
  /// Holds and lets go by a reference or a call of this process.
  void hold(ObjectId id);
  void let_go(ObjectId id);
  /// A worker was lost. Creations that it owes fail at once, also those that are heard of later. Its holds end with
  /// `forget()`.
  void lose(int worker, const std::exception_ptr& error);
  void forget(int worker);

  size_t size() const;
  /// "type (created by rank 1)" of each value.
  std::vector<std::string> list() const;
  void clear();

 private:
  struct Entry {
    ReferenceHolders holders = {};
    int num_local = 0;
    bool expected = false, ready = false;
    Found found = {};
    std::vector<std::function<void(const Found&)>> waiting = {};
    std::shared_ptr<Strand> strand = {};
  };
  void settle(ObjectId id, Found found);
  // Returns what ends, so that it is destroyed without the lock.
  detail::Object remove_if_free(std::map<ObjectId, Entry>::iterator entry);

  Pool& pool_;
  mutable std::mutex mutex_;
  std::map<ObjectId, Entry> entries_;
  std::map<uint32_t, std::exception_ptr> lost_;  // nothing more comes from these workers
};

}  // namespace hasten::rpc
