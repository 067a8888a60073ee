// AgentCore's references: how they are passed on, received and dropped; see agent_core.h and reference_holders.h.
#include <utility>

#include "hasten/core/error.h"
#include "rpc/agent_core.h"
#include "rpc/bridge.h"
#include "rpc/serving.h"

namespace hasten::rpc {
namespace {

/// A copy of an RRef: holds a grant of a value elsewhere, or the value itself at its owner.
class HeldReference final : public detail::Reference {
 public:
  HeldReference(std::shared_ptr<AgentCore> agent, detail::ObjectId id, int owner, Grant grant,
                std::shared_ptr<detail::State<void>> created = nullptr)
      : Reference(agent, id, owner), agent_(std::move(agent)), grant_(grant), ready_(std::move(created)) {}
  ~HeldReference() override { agent_->let_go(id, owner, grant_); }
  std::shared_ptr<detail::State<void>> ready() const override { return ready_; }

 private:
  const std::shared_ptr<AgentCore> agent_;
  const Grant grant_;
  const std::shared_ptr<detail::State<void>> ready_;
};

Head head_for(Kind kind, const detail::ObjectId& id) {
  Head head;
  head.kind = static_cast<uint16_t>(kind);
  head.object_creator = id.creator;
  head.object_number = id.number;
  return head;
}

void write_grant(detail::Packed& packed, const Grant& grant, int holder) {
  Writer writer(packed);
  writer.number(grant.giver);
  writer.number(grant.number);
  writer.number(static_cast<int32_t>(holder));
}

}  // namespace

std::shared_ptr<detail::Reference> AgentCore::create(const detail::CallSpec& spec, detail::Packed packed) {
  find(spec);  // throws before anything is held
  const detail::ObjectId id{static_cast<uint32_t>(rank_), next_object_++};
  auto reply = std::make_shared<detail::ReplyState<void>>(executor());
  const bool is_local = spec.to == rank_;
  const Grant grant{id.creator, id.number};
  if (is_local) objects_->hold(id);
  auto reference = std::make_shared<HeldReference>(self(), id, spec.to, grant, reply);
  if (!is_local) {
    const std::lock_guard lock(references_mutex_);
    held_.emplace(grant, std::pair{id, spec.to});
  }
  Pending pending;
  pending.reply = reply;
  if (!is_local) reply->awaited_rank = spec.to;
  start_call(spec, std::move(packed), std::move(pending), Kind::kCreate, id.number);
  // The creation's own grant: at the owner itself the reference holds, so it is not needed.
  if (is_local) objects_->drop(id, grant);
  return reference;
}

std::shared_ptr<detail::Reference> AgentCore::adopt(detail::Object object) {
  const detail::ObjectId id{static_cast<uint32_t>(rank_), next_object_++};
  objects_->hold(id);
  objects_->expect(id);
  objects_->store(id, std::move(object));
  objects_->drop(id, {id.creator, id.number});
  return std::make_shared<HeldReference>(self(), id, rank_, Grant{});
}

detail::Object AgentCore::local_object(const detail::Reference& reference) {
  if (reference.owner != rank_) {
    throw UsageError(origin(), "local_value() of a value that ", described(reference.owner),
                     " owns. Use to_here(), or call its member functions.");
  }
  auto found = std::make_shared<detail::State<Objects::Found>>(executor());
  objects_->when_ready(reference.id, [found](const Objects::Found& one) { found->set(one); });
  found->wait();
  if (found->value().error) std::rethrow_exception(found->value().error);
  return found->value().object;
}

void AgentCore::fetch(const detail::Reference& reference, const std::string& description, const CallOptions& options,
                      const std::shared_ptr<detail::ReplyBase>& reply) {
  detail::CallSpec spec;
  spec.to = reference.owner;
  spec.function = "hasten.fetch";
  spec.signature = detail::signature_hash(spec.function);
  spec.options = options;
  spec.object = reference.id;
  detail::Packed packed;
  Writer(packed).string(description);
  call(spec, std::move(packed), reply);
}

// A lock lasts as long as an optimizer has it, and the optimizer keeps its parameters.
std::vector<std::shared_ptr<std::mutex>> AgentCore::locks_of(const std::vector<at::Tensor>& parameters) {
  const std::lock_guard lock(parameters_mutex_);
  std::set<std::shared_ptr<std::mutex>> locks;
  const auto fresh = std::make_shared<std::mutex>();
  for (const at::Tensor& parameter : parameters) {
    auto& known = parameter_locks_[parameter.unsafeGetTensorImpl()];
    auto its = known.lock();
    if (!its) known = its = fresh;
    locks.insert(its);
  }
  std::erase_if(parameter_locks_, [](const auto& one) { return one.second.expired(); });
  return {locks.begin(), locks.end()};
}

// Before the message itself: the owner is notified of each reference that goes to another worker.
std::vector<WireReference> AgentCore::pass_on(const detail::Packed& packed, int to) {
  std::vector<WireReference> references;
  for (const auto& reference : packed.references) {
    if (!reference)
      throw UsageError(origin(), "an empty RRef is an argument or a result of a call. It refers to no value.");
    WireReference wire{reference->id.creator, static_cast<uint32_t>(reference->owner), reference->id.number, {}};
    if (reference->owner != to) {
      wire.grant = {static_cast<uint32_t>(rank_), (uint64_t{1} << 63) | next_grant_++};
      if (reference->owner == rank_) {
        objects_->grant(reference->id, wire.grant, to, false);
      } else {
        detail::Packed grant;
        write_grant(grant, wire.grant, to);
        send(reference->owner, head_for(Kind::kGrant, reference->id), std::move(grant));
      }
    }
    references.push_back(wire);
  }
  return references;
}

void AgentCore::take_back(const std::vector<WireReference>& references) {
  for (const WireReference& wire : references) {
    if (wire.grant.number == 0) continue;
    detail::Packed packed;
    write_grant(packed, wire.grant, -1);
    const detail::ObjectId id{wire.creator, wire.number};
    if (static_cast<int>(wire.owner) == rank_) {
      objects_->drop(id, wire.grant);
    } else {
      send(static_cast<int>(wire.owner), head_for(Kind::kDrop, id), std::move(packed));
    }
  }
}

std::shared_ptr<detail::Reference> AgentCore::received(const WireReference& wire, int from) {
  const detail::ObjectId id{wire.creator, wire.number};
  const auto owner = static_cast<int>(wire.owner);
  const auto num_workers = static_cast<uint32_t>(workers_.size());
  if (wire.owner >= num_workers || wire.creator >= num_workers)
    throw DataError(Origin{"rpc"}, "message", "a reference to a worker that does not exist");
  if (owner == rank_) {
    objects_->hold(id);
    return std::make_shared<HeldReference>(self(), id, owner, Grant{});
  }
  {
    const std::lock_guard lock(references_mutex_);
    if (!held_.emplace(wire.grant, std::pair{id, owner}).second)
      throw DataError(Origin{"rpc"}, "message",
                      text("a reference of ", described(from), " whose grant was used before"));
  }
  return std::make_shared<HeldReference>(self(), id, owner, wire.grant);
}

void AgentCore::let_go(const detail::ObjectId& id, int owner, const Grant& grant) noexcept {
  try {
    if (owner == rank_) {
      objects_->let_go(id);
      return;
    }
    {
      const std::lock_guard lock(references_mutex_);
      held_.erase(grant);
    }
    if (closed_) return;
    detail::Packed packed;
    write_grant(packed, grant, rank_);
    send(owner, head_for(Kind::kDrop, id), std::move(packed));
  } catch (...) {
    // The owner is gone, and its values with it.
  }
}

void AgentCore::on_reference(int from, const Decoded& message) {
  Decoded copy = message;
  Reader reader(copy.packed, nullptr);
  Grant grant;
  grant.giver = reader.number<uint32_t>();
  grant.number = reader.number<uint64_t>();
  const auto holder = reader.number<int32_t>();
  const detail::ObjectId id{message.head.object_creator, message.head.object_number};
  switch (static_cast<Kind>(message.head.kind)) {
    case Kind::kGrant:
      objects_->grant(id, grant, holder, false);
      break;
    case Kind::kConfirm:
      objects_->grant(id, grant, from, true);
      break;
    default:
      objects_->drop(id, grant);
      break;
  }
}

}  // namespace hasten::rpc
