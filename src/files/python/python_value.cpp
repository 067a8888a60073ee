// Nodes with a reference count behind the handles; see python_value.h.
//
// Destroying a deep tree must not recurse: a file may nest lists 20,000 levels deep. A node that loses its last handle
// hands its children to a work list instead.
#include "hasten/files/python/python_value.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "files/base/origin.h"
#include "hasten/core/number.h"
#include "hasten/core/sentence.h"
#include "hasten/files/base/box.h"

namespace hasten::files {

struct PythonValue::Node {
  virtual ~Node() = default;
  /// Moves all values that this node holds to `children`.
  virtual void take_children(Items&) {}
  std::atomic<uint32_t> references = 1;
};

namespace {

using Kind = PythonValue::Kind;

void take_pairs(PythonValue::Pairs& pairs, PythonValue::Items& children) {
  for (auto& [key, value] : pairs) {
    children.push_back(std::move(key));
    children.push_back(std::move(value));
  }
  pairs.clear();
}

void take_items(PythonValue::Items& items, PythonValue::Items& children) {
  std::move(items.begin(), items.end(), std::back_inserter(children));
  items.clear();
}

struct TextNode : PythonValue::Node {
  explicit TextNode(std::string value) : text(std::move(value)) {}
  std::string text;
};
struct ComplexNode : PythonValue::Node {
  ComplexNode(double real, double imaginary) : value(real, imaginary) {}
  std::pair<double, double> value;
};
struct ItemsNode : PythonValue::Node {
  explicit ItemsNode(PythonValue::Items value) : items(std::move(value)) {}
  void take_children(PythonValue::Items& children) override { take_items(items, children); }
  PythonValue::Items items;
};
struct PairsNode : PythonValue::Node {
  explicit PairsNode(PythonValue::Pairs value) : pairs(std::move(value)) {}
  void take_children(PythonValue::Items& children) override {
    take_pairs(pairs, children);
    children.push_back(std::move(attributes));
  }
  PythonValue::Pairs pairs;
  PythonValue attributes;
};
struct TensorNode : PythonValue::Node {
  explicit TensorNode(PythonTensor value) : tensor(std::move(value)) {}
  PythonTensor tensor;
};
struct ArrayNode : PythonValue::Node {
  explicit ArrayNode(PythonArray value) : array(std::move(value)) {}
  PythonArray array;
};
struct ObjectNode : PythonValue::Node {
  explicit ObjectNode(PythonValue::Object value) : object(std::move(value)) {}
  void take_children(PythonValue::Items& children) override {
    children.push_back(std::move(object.args));
    children.push_back(std::move(object.state));
    take_items(object.items, children);
    take_pairs(object.pairs, children);
  }
  PythonValue::Object object;
};

const char* kind_name(Kind kind) {
  static constexpr const char* kNames[] = {"None",
                                           "bool",
                                           "int",
                                           "float",
                                           "complex",
                                           "str",
                                           "bytes",
                                           "bytearray",
                                           "list",
                                           "tuple",
                                           "torch.Size",
                                           "set",
                                           "frozenset",
                                           "dict",
                                           "OrderedDict",
                                           "Counter",
                                           "tensor",
                                           "numpy array",
                                           "torch.dtype",
                                           "torch.device",
                                           "class or function",
                                           "object",
                                           "reference to a value around it"};
  return kNames[static_cast<size_t>(kind)];
}

[[noreturn]] void wrong_kind(const PythonValue& value, const char* expected) {
  throw DataError(kOrigin, "", "a Python value is a ", value.type_name(), " where a ", expected,
                  " is expected. Look at the file with 'hasten checkpoint show'.");
}

std::string key_text(const PythonValue& key) {
  if (key.is_string()) return key.as_string();
  return key.is_int() ? key.int_text() : key.type_name();
}

bool same_key(const PythonValue& one, const PythonValue& other) {
  if (one.kind() != other.kind()) return false;
  if (one.is_string()) return one.as_string() == other.as_string();
  if (one.is_int()) return one.int_text() == other.int_text();
  return one.same_as(other);
}

}  // namespace

PythonValue::PythonValue(std::string value) : PythonValue(Kind::kString, new TextNode(std::move(value))) {}
PythonValue::PythonValue(PythonTensor value) : PythonValue(Kind::kTensor, new TensorNode(std::move(value))) {}

PythonValue::PythonValue(const PythonValue& other) noexcept
    : payload_(other.payload_), kind_(other.kind_), has_node_(other.has_node_) {
  if (has_node_) payload_.node->references.fetch_add(1, std::memory_order_relaxed);
}

PythonValue::PythonValue(PythonValue&& other) noexcept
    : payload_(other.payload_), kind_(other.kind_), has_node_(std::exchange(other.has_node_, false)) {
  other.kind_ = Kind::kNone;
}

PythonValue& PythonValue::operator=(const PythonValue& other) noexcept {
  if (this != &other) *this = PythonValue(other);
  return *this;
}

PythonValue& PythonValue::operator=(PythonValue&& other) noexcept {
  std::swap(payload_, other.payload_);
  std::swap(kind_, other.kind_);
  std::swap(has_node_, other.has_node_);
  return *this;
}

PythonValue::~PythonValue() {
  if (has_node_) release();
}

void PythonValue::release() noexcept {
  const auto drop = [](Node* node) { return node->references.fetch_sub(1, std::memory_order_acq_rel) == 1; };
  has_node_ = false;
  if (!drop(payload_.node)) return;
  Items children;
  std::vector<Node*> dying{payload_.node};
  while (!dying.empty()) {
    Node* const node = dying.back();
    dying.pop_back();
    node->take_children(children);
    delete node;
    for (PythonValue& child : children) {
      if (std::exchange(child.has_node_, false) && drop(child.payload_.node)) dying.push_back(child.payload_.node);
    }
    children.clear();
  }
}

PythonValue PythonValue::items_of(Kind kind, Items items) {
  return {kind, new ItemsNode(std::move(items))};
}
PythonValue PythonValue::pairs_of(Kind kind, Pairs pairs) {
  return {kind, new PairsNode(std::move(pairs))};
}
PythonValue PythonValue::text_of(Kind kind, std::string text) {
  return {kind, new TextNode(std::move(text))};
}
PythonValue PythonValue::list(Items items) {
  return items_of(Kind::kList, std::move(items));
}
PythonValue PythonValue::tuple(Items items) {
  return items_of(Kind::kTuple, std::move(items));
}
PythonValue PythonValue::dict(Pairs pairs) {
  return pairs_of(Kind::kDict, std::move(pairs));
}
PythonValue PythonValue::ordered_dict(Pairs pairs) {
  return pairs_of(Kind::kOrderedDict, std::move(pairs));
}
PythonValue PythonValue::size(const std::vector<int64_t>& sizes) {
  return items_of(Kind::kSize, Items(sizes.begin(), sizes.end()));
}
PythonValue PythonValue::bytes(std::string bytes) {
  return text_of(Kind::kBytes, std::move(bytes));
}
PythonValue PythonValue::complex(double real, double imaginary) {
  return {Kind::kComplex, new ComplexNode(real, imaginary)};
}
PythonValue PythonValue::dtype(Dtype dtype) {
  PythonValue value(static_cast<int64_t>(dtype));
  value.kind_ = Kind::kDtype;
  return value;
}
PythonValue PythonValue::device(std::string name) {
  return text_of(Kind::kDevice, std::move(name));
}
PythonValue PythonValue::unsigned_int(uint64_t value) {
  if (value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return static_cast<int64_t>(value);
  return text_of(Kind::kInt, std::to_string(value));
}
PythonValue PythonValue::big_int(std::string_view decimal) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(decimal.data(), decimal.data() + decimal.size(), value);
  if (error == std::errc() && end == decimal.data() + decimal.size()) return value;
  const std::string_view digits = decimal.substr(decimal.starts_with('-') ? 1 : 0);
  if (digits.empty() || digits.find_first_not_of("0123456789") != std::string_view::npos) {
    throw UsageError(kOrigin, "'", decimal, "' is no decimal integer.");
  }
  return text_of(Kind::kInt, std::string(decimal));
}
PythonValue PythonValue::global(std::string module, std::string name) {
  return {Kind::kGlobal, new ObjectNode({.module = std::move(module), .name = std::move(name)})};
}
PythonValue PythonValue::object(Object object) {
  return {Kind::kObject, new ObjectNode(std::move(object))};
}
PythonValue PythonValue::array(PythonArray array) {
  return {Kind::kArray, new ArrayNode(std::move(array))};
}
PythonValue PythonValue::cycle() {
  PythonValue value(int64_t{0});
  value.kind_ = Kind::kCycle;
  return value;
}

template <class T>
T& PythonValue::node_as(const char* expected, bool right) const {
  if (!right || !has_node_) wrong_kind(*this, expected);
  return static_cast<T&>(*payload_.node);
}

bool PythonValue::as_bool() const {
  if (!is_bool()) wrong_kind(*this, "bool");
  return payload_.integer != 0;
}

namespace {

template <class T>
T loaded(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

/// Returns the value of a tensor of one number whose bytes are in memory.
std::optional<double> number_of(const PythonTensor& tensor) {
  if (tensor.storage == nullptr || tensor.storage->data == nullptr || tensor.storage->swapped ||
      numel_of(tensor.shape) != 1)
    return std::nullopt;
  const char* at = tensor.storage->data + tensor.offset * static_cast<int64_t>(element_bytes(tensor.dtype));
  switch (tensor.dtype) {
    case Dtype::kFloat32:
      return loaded<float>(at);
    case Dtype::kFloat64:
      return loaded<double>(at);
    case Dtype::kInt64:
      return static_cast<double>(loaded<int64_t>(at));
    case Dtype::kInt32:
      return loaded<int32_t>(at);
    case Dtype::kInt16:
      return loaded<int16_t>(at);
    case Dtype::kInt8:
      return loaded<int8_t>(at);
    case Dtype::kUInt8:
    case Dtype::kBool:
      return loaded<uint8_t>(at);
    case Dtype::kBFloat16: {
      const uint32_t bits = uint32_t{loaded<uint16_t>(at)} << 16;
      float value;
      std::memcpy(&value, &bits, sizeof value);
      return value;
    }
    default:
      return std::nullopt;
  }
}

std::optional<double> number_of(const PythonArray& array) {
  if (array.dtype == "f8" && array.bytes.size() == 8) return loaded<double>(array.bytes.data());
  if (array.dtype == "f4" && array.bytes.size() == 4) return loaded<float>(array.bytes.data());
  if (array.dtype == "i8" && array.bytes.size() == 8) return static_cast<double>(loaded<int64_t>(array.bytes.data()));
  if (array.dtype == "i4" && array.bytes.size() == 4) return loaded<int32_t>(array.bytes.data());
  if (array.dtype == "b1" && array.bytes.size() == 1) return array.bytes[0] != 0;
  return std::nullopt;
}

}  // namespace

double PythonValue::as_double() const {
  if (kind_ == Kind::kFloat) return payload_.real;
  if (is_int() && !has_node_) return static_cast<double>(payload_.integer);
  if (is_int()) return core::real_number(as_string()).value_or(NAN);
  std::optional<double> number;
  if (is_tensor()) number = number_of(as_tensor());
  if (kind_ == Kind::kArray) number = number_of(as_array());
  if (!number) wrong_kind(*this, "number");
  return *number;
}

int64_t PythonValue::as_int() const {
  if ((is_int() && !has_node_) || is_bool()) return payload_.integer;
  if (is_int()) throw DataError(kOrigin, "", "the integer ", int_text(), " does not fit 64 bits.");
  const double number = is_string() || is_none() ? NAN : as_double();
  if (!(number == std::floor(number) && std::abs(number) < 9.2e18)) wrong_kind(*this, "whole number");
  return static_cast<int64_t>(number);
}

uint64_t PythonValue::as_uint() const {
  uint64_t value = 0;
  const std::string digits = is_int() ? int_text() : std::to_string(as_int());
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    throw DataError(kOrigin, "", "the integer ", digits, " does not fit 64 bits without sign.");
  }
  return value;
}

std::string PythonValue::int_text() const {
  if (!is_int()) wrong_kind(*this, "int");
  return has_node_ ? static_cast<const TextNode&>(*payload_.node).text : std::to_string(payload_.integer);
}

std::pair<double, double> PythonValue::as_complex() const {
  return node_as<ComplexNode>("complex", kind_ == Kind::kComplex).value;
}

const std::string& PythonValue::as_string() const {
  return node_as<TextNode>("str", kind_ == Kind::kString || kind_ == Kind::kDevice || is_big_int()).text;
}
const std::string& PythonValue::as_bytes() const {
  return node_as<TextNode>("bytes", kind_ == Kind::kBytes || kind_ == Kind::kByteArray).text;
}
const PythonValue::Items& PythonValue::as_items() const {
  return node_as<ItemsNode>("sequence", is_sequence()).items;
}
PythonValue::Items& PythonValue::as_items() {
  return node_as<ItemsNode>("sequence", is_sequence()).items;
}
const PythonValue::Pairs& PythonValue::as_pairs() const {
  return node_as<PairsNode>("dict", is_mapping()).pairs;
}
PythonValue::Pairs& PythonValue::as_pairs() {
  return node_as<PairsNode>("dict", is_mapping()).pairs;
}
const PythonTensor& PythonValue::as_tensor() const {
  return node_as<TensorNode>("tensor", is_tensor()).tensor;
}
const PythonArray& PythonValue::as_array() const {
  return node_as<ArrayNode>("numpy array", kind_ == Kind::kArray).array;
}
Dtype PythonValue::as_dtype() const {
  if (kind_ != Kind::kDtype) wrong_kind(*this, "torch.dtype");
  return static_cast<Dtype>(payload_.integer);
}
const PythonValue::Object& PythonValue::as_object() const {
  return node_as<ObjectNode>("object", kind_ == Kind::kObject || kind_ == Kind::kGlobal).object;
}
PythonValue::Object& PythonValue::as_object() {
  return node_as<ObjectNode>("object", kind_ == Kind::kObject || kind_ == Kind::kGlobal).object;
}

const PythonValue* PythonValue::find(std::string_view key) const noexcept {
  if (!is_mapping()) return nullptr;
  for (const auto& [known, value] : as_pairs()) {
    if (known.is_string() && known.as_string() == key) return &value;
  }
  return nullptr;
}

const PythonValue* PythonValue::find(int64_t key) const noexcept {
  if (!is_mapping()) return nullptr;
  for (const auto& [known, value] : as_pairs()) {
    if (known.is_int() && !known.is_big_int() && known.as_int() == key) return &value;
  }
  return nullptr;
}

const PythonValue& PythonValue::at(std::string_view key) const {
  if (const PythonValue* found = find(key)) return *found;
  std::vector<std::string> keys;
  for (const auto& [known, value] : as_pairs()) keys.push_back(key_text(known));
  throw DataError(kOrigin, "", "a Python dict has no key '", key, "'", guess_end(key, keys), " It has ", keys.size(),
                  keys.size() <= 20 ? text(" (", join(keys), ")") : "", ".");
}

const PythonValue& PythonValue::operator[](size_t index) const {
  const Items& items = as_items();
  if (index >= items.size()) {
    throw DataError(kOrigin, "", "a Python ", type_name(), " of ", items.size(), " elements has none of index ", index,
                    ".");
  }
  return items[index];
}

size_t PythonValue::size() const noexcept {
  return is_sequence() ? as_items().size() : is_mapping() ? as_pairs().size() : 0;
}

void PythonValue::push_back(PythonValue value) {
  as_items().push_back(std::move(value));
}

void PythonValue::set(PythonValue key, PythonValue value) {
  Pairs& pairs = as_pairs();
  for (auto& [known, old] : pairs) {
    if (same_key(known, key)) {
      old = std::move(value);
      return;
    }
  }
  pairs.emplace_back(std::move(key), std::move(value));
}

const PythonValue* PythonValue::attributes() const noexcept {
  if (!is_mapping()) return nullptr;
  const PythonValue& attributes = static_cast<const PairsNode&>(*payload_.node).attributes;
  return attributes.is_none() ? nullptr : &attributes;
}

void PythonValue::set_attributes(PythonValue dict) {
  node_as<PairsNode>("dict", is_mapping()).attributes = std::move(dict);
}

std::string PythonValue::type_name() const {
  return is_object() ? as_object().qualified() : kind_name(kind_);
}

const PythonValue* PythonValue::Object::attribute(std::string_view key) const noexcept {
  if (state.is_mapping()) return state.find(key);
  if (!state.is_sequence()) return nullptr;
  for (const PythonValue& part : state.as_items()) {
    if (const PythonValue* found = part.find(key)) return found;
  }
  return nullptr;
}

}  // namespace hasten::files
