// The parts of the agent that the templates of agent.h, functions.h and rref.h need, without its mechanism.
//
// A program does not use these types by name.
#pragma once

#include <compare>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include "hasten/rpc/detail/state.h"
#include "hasten/rpc/writer.h"

namespace hasten::rpc {

/// A worker: its unique name and its rank.
struct WorkerInfo {
  std::string name;
  int id = 0;
  bool operator==(const WorkerInfo&) const = default;
};

/// The worker that a call goes to: its name, its rank or its WorkerInfo.
class To {
 public:
  To(std::string name) : name_(std::move(name)) {}
  To(const char* name) : name_(name) {}
  To(int rank) : rank_(rank) {}
  To(const WorkerInfo& worker) : rank_(worker.id) {}
  int rank() const noexcept { return rank_; }
  const std::string& name() const noexcept { return name_; }

 private:
  std::string name_ = {};
  int rank_ = -1;
};

/// Settings of single calls: agent.with({.timeout_s = 5}).sync<&f>(…).
struct CallOptions {
  /// Seconds until the call fails; 0: none; negative: RpcOptions::timeout_s. Inside a handler it is never more than the
  /// remaining time of the call that it serves.
  double timeout_s = -1;
};

namespace detail {

/// Identity of a value that RRefs refer to: chosen by the worker that requested its creation.
struct ObjectId {
  uint32_t creator = 0;
  uint64_t number = 0;
  auto operator<=>(const ObjectId&) const = default;
};

/// A value of any type at its owner.
struct Object {
  std::shared_ptr<void> value;
  std::string type;
  const std::type_info* type_id;
  /// Throws a pointer to the value, which a handler of a base class catches.
  void (*throw_pointer)(void* value);
  /// Null if the type cannot travel.
  void (*encode)(Writer& to, const void* value);
  std::string description;
};

/// The future of a call, which can read its reply.
class ReplyBase {
 public:
  virtual ~ReplyBase() = default;
  virtual StateBase& state() = 0;
  virtual void decode(Reader& from) = 0;
};

struct CallSpec {
  int to = -1;
  std::string_view function;
  uint32_t signature = 0;
  std::string (*describe)() = nullptr;
  CallOptions options = {};
  /// The value whose member function is called; number 0: none.
  ObjectId object = {};
};

class Core;

/// A copy of an RRef in this process.
class Reference {
 public:
  Reference(std::shared_ptr<Core> core_, ObjectId id_, int owner_) : core(std::move(core_)), id(id_), owner(owner_) {}
  virtual ~Reference() = default;
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;
  /// Done once the owner has the value; has the creation's error. Null where another worker created it.
  virtual std::shared_ptr<State<void>> ready() const = 0;

  const std::shared_ptr<Core> core;
  const ObjectId id;
  const int owner;
};

class Core : public std::enable_shared_from_this<Core> {
 public:
  virtual ~Core() = default;
  virtual std::shared_ptr<Executor> executor() const = 0;
  virtual int rank() const = 0;
  virtual const WorkerInfo& worker(int rank) const = 0;
  virtual int rank_of(const To& to) const = 0;
  /// Throws: UsageError (unknown function, other signature), CommError (the worker is gone).
  virtual void call(const CallSpec& spec, Packed packed, const std::shared_ptr<ReplyBase>& reply) = 0;
  /// Runs the function at spec.to, which keeps the result.
  virtual std::shared_ptr<Reference> create(const CallSpec& spec, Packed packed) = 0;
  virtual std::shared_ptr<Reference> adopt(Object object) = 0;
  /// Returns the owner's value. Throws: UsageError at another worker; the creation's error. Blocks: until it is
  /// created.
  virtual Object local_object(const Reference& reference) = 0;
  /// Returns the locks of parameters of this worker, in one order for all: lists that share a parameter share a lock.
  virtual std::vector<std::shared_ptr<std::mutex>> locks_of(const std::vector<at::Tensor>& parameters) = 0;
  virtual void fetch(const Reference& reference, const std::string& description, const CallOptions& options,
                     const std::shared_ptr<ReplyBase>& reply) = 0;
};

/// A call that is served here.
class ServedCall : public std::enable_shared_from_this<ServedCall> {
 public:
  virtual ~ServedCall() = default;
  virtual Packed& packed() = 0;
  virtual const std::shared_ptr<Core>& core() const = 0;
  /// Returns the value that a member function is called on; it is there.
  virtual const Object& object() const = 0;
  /// True if the result stays here and the caller has an RRef to it.
  virtual bool creates() const = 0;
  virtual void store(Object object) = 0;
  virtual void reply(Packed packed) = 0;
  virtual void fail(std::exception_ptr error) noexcept = 0;
};

template <class R>
class ReplyState final : public State<R>, public ReplyBase {
 public:
  using State<R>::State;
  StateBase& state() override { return *this; }
  void decode(Reader& from) override;
};

/// While it exists, a call of this thread is one that it waits for at once. A profile shows both as one scope.
class WaitedFor {
 public:
  WaitedFor();
  ~WaitedFor();
  WaitedFor(const WaitedFor&) = delete;
  WaitedFor& operator=(const WaitedFor&) = delete;
};

/// Returns the same hash of a signature on all workers: 32 bits of FNV-1a.
uint32_t signature_hash(std::string_view text);

[[noreturn]] void throw_wrong_object(const Object& object, const std::string& expected);

}  // namespace detail
}  // namespace hasten::rpc
