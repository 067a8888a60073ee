// PythonValue: the contents of a Python file, as inert data.
//
// Reading a file never executes anything in it. Builtin containers and numbers, tensors and a few known classes have
// kinds of their own. Everything else is an object: the names of a class, its arguments and its state. Values are small
// handles; containers are shared by handle and destroyed without recursion. Cycles are cut when a file is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hasten/files/base/dtype.h"

namespace hasten::files {

class PythonValue;

/// The bytes of a torch storage. Tensors that view one storage share it.
struct PythonStorage {
  std::string key = {};         ///< name inside the file
  std::string device = "cpu";   ///< from the file; the bytes are always in host memory or on disk
  Dtype dtype = Dtype::kUInt8;  ///< of the typed storage; kUInt8 for an untyped one
  int64_t bytes = 0;
  const char* data = nullptr;              ///< null if the bytes are given by `read` or are nowhere (device "meta")
  std::shared_ptr<const void> owner = {};  ///< keeps `data` alive
  /// Copies [begin, begin + size) to `target`: for storages that are not in memory (compressed, or written as a
  /// stream).
  std::function<void(uint64_t begin, uint64_t size, void* target)> read = {};
  bool swapped = false;   ///< the bytes have the other byte order
  std::string path = {};  ///< the file that holds the bytes at `offset`, for mapping; "" if none does
  uint64_t offset = 0;
};

/// A strided, sparse or quantised tensor as the file describes it.
struct PythonTensor {
  std::shared_ptr<PythonStorage> storage = {};
  Dtype dtype = Dtype::kFloat32;
  std::vector<int64_t> shape = {}, stride = {};  ///< in elements
  int64_t offset = 0;                            ///< in elements
  bool requires_grad = false, parameter = false, conj = false, neg = false;
  std::string unreadable = {};  ///< why its values cannot be read ("quantized"); "" if they can
  std::shared_ptr<PythonTensor> indices = {}, values = {};  ///< of a sparse COO tensor, which has no storage
  std::string subclass = {};                                ///< class of a tensor subclass whose data this is
  bool is_meta() const noexcept { return storage != nullptr && storage->device == "meta"; }
  bool is_sparse() const noexcept { return indices != nullptr; }
};

/// A numpy array or scalar.
struct PythonArray {
  std::string dtype = {};  ///< numpy's code without byte order: "f8", "i4", "u1", "b1", "U3", "O8"
  std::vector<int64_t> shape = {};
  std::string bytes = {};  ///< C order, little-endian
};

class PythonValue {
 public:
  using Items = std::vector<PythonValue>;
  using Pairs = std::vector<std::pair<PythonValue, PythonValue>>;
  enum class Kind : uint8_t {
    kNone,
    kBool,
    kInt,
    kFloat,
    kComplex,
    kString,
    kBytes,
    kByteArray,
    kList,
    kTuple,
    kSize,
    kSet,
    kFrozenSet,
    kDict,
    kOrderedDict,
    kCounter,
    kTensor,
    kArray,
    kDtype,
    kDevice,
    kGlobal,
    kObject,
    kCycle
  };
  /// A class or function by name, or an object of an unknown class.
  struct Object;
  struct Node;

  PythonValue() noexcept = default;
  PythonValue(bool value) noexcept : kind_(Kind::kBool) { payload_.integer = value; }
  PythonValue(int value) noexcept : PythonValue(int64_t{value}) {}
  PythonValue(int64_t value) noexcept : kind_(Kind::kInt) { payload_.integer = value; }
  PythonValue(double value) noexcept : kind_(Kind::kFloat) { payload_.real = value; }
  PythonValue(const char* value) : PythonValue(std::string(value)) {}
  PythonValue(std::string_view value) : PythonValue(std::string(value)) {}
  PythonValue(std::string value);
  PythonValue(PythonTensor value);
  PythonValue(const PythonValue& other) noexcept;
  PythonValue(PythonValue&& other) noexcept;
  PythonValue& operator=(const PythonValue& other) noexcept;
  PythonValue& operator=(PythonValue&& other) noexcept;
  ~PythonValue();

  static PythonValue none() { return {}; }
  static PythonValue list(Items items = {});
  static PythonValue tuple(Items items = {});
  static PythonValue dict(Pairs pairs = {});
  static PythonValue ordered_dict(Pairs pairs = {});
  static PythonValue size(const std::vector<int64_t>& sizes);  ///< torch.Size
  static PythonValue bytes(std::string bytes);
  static PythonValue complex(double real, double imaginary);
  static PythonValue dtype(Dtype dtype);
  static PythonValue device(std::string name);
  static PythonValue unsigned_int(uint64_t value);
  /// Returns an integer of any size from decimal text. Throws: UsageError if the text is none.
  static PythonValue big_int(std::string_view decimal);
  static PythonValue global(std::string module, std::string name);
  static PythonValue object(Object object);
  static PythonValue array(PythonArray array);
  /// Returns a container of one of the kinds kList to kFrozenSet, or kDict to kCounter.
  static PythonValue items_of(Kind kind, Items items = {});
  static PythonValue pairs_of(Kind kind, Pairs pairs = {});
  /// Returns a value of kString, kBytes, kByteArray, kDevice, or a kInt of more than 64 bits.
  static PythonValue text_of(Kind kind, std::string text);
  static PythonValue cycle();

  Kind kind() const noexcept { return kind_; }
  bool is_none() const noexcept { return kind_ == Kind::kNone; }
  bool is_bool() const noexcept { return kind_ == Kind::kBool; }
  bool is_int() const noexcept { return kind_ == Kind::kInt; }
  bool is_number() const noexcept { return kind_ == Kind::kInt || kind_ == Kind::kFloat; }
  bool is_string() const noexcept { return kind_ == Kind::kString; }
  bool is_sequence() const noexcept { return kind_ >= Kind::kList && kind_ <= Kind::kFrozenSet; }
  bool is_mapping() const noexcept { return kind_ >= Kind::kDict && kind_ <= Kind::kCounter; }
  bool is_tensor() const noexcept { return kind_ == Kind::kTensor; }
  bool is_object() const noexcept { return kind_ == Kind::kObject; }

  /// Return the contents. Throws: DataError naming the kind found and the kind asked for. as_double takes an int as
  /// well. as_int takes a bool, a float without a fraction, and a tensor or array of one whole number in memory.
  bool as_bool() const;
  int64_t as_int() const;
  uint64_t as_uint() const;
  double as_double() const;
  std::pair<double, double> as_complex() const;
  const std::string& as_string() const;
  const std::string& as_bytes() const;  ///< of bytes and bytearray
  const Items& as_items() const;        ///< of list, tuple, Size, set, frozenset
  Items& as_items();
  const Pairs& as_pairs() const;  ///< of dict, OrderedDict, Counter
  Pairs& as_pairs();
  const PythonTensor& as_tensor() const;
  const PythonArray& as_array() const;
  Dtype as_dtype() const;
  const Object& as_object() const;  ///< of kGlobal and kObject
  Object& as_object();
  /// Returns the decimal digits of an int of any size.
  std::string int_text() const;
  /// Returns true for an int that does not fit 64 bits with sign.
  bool is_big_int() const noexcept { return kind_ == Kind::kInt && has_node_; }

  /// Returns the value under a text key of a mapping, or null.
  const PythonValue* find(std::string_view key) const noexcept;
  /// Returns the value under an int key of a mapping, or null.
  const PythonValue* find(int64_t key) const noexcept;
  bool contains(std::string_view key) const noexcept { return find(key) != nullptr; }
  /// Returns the value under a key, or of an index. Throws: DataError, with the nearest key.
  const PythonValue& at(std::string_view key) const;
  const PythonValue& operator[](std::string_view key) const { return at(key); }
  const PythonValue& operator[](size_t index) const;
  /// Returns the number of elements of a container, 0 for anything else.
  size_t size() const noexcept;
  /// Appends to a container. Throws: DataError for another kind.
  void push_back(PythonValue value);
  void set(PythonValue key, PythonValue value);  ///< replaces an equal key

  /// Returns attributes that a state gave to an OrderedDict (`_metadata` of a state_dict); null if there are none.
  const PythonValue* attributes() const noexcept;
  void set_attributes(PythonValue dict);

  /// Returns true if both are the same container, not only equal.
  bool same_as(const PythonValue& other) const noexcept {
    return has_node_ && other.has_node_ && payload_.node == other.payload_.node;
  }
  const void* identity() const noexcept { return has_node_ ? payload_.node : nullptr; }

  /// Returns "OrderedDict", "Tensor", "my.Class"…, for messages.
  std::string type_name() const;

 private:
  PythonValue(Kind kind, Node* node) noexcept : kind_(kind), has_node_(true) { payload_.node = node; }
  template <class T>
  T& node_as(const char* expected, bool right) const;
  void release() noexcept;

  union {
    Node* node;
    int64_t integer;
    double real;
  } payload_ = {nullptr};
  Kind kind_ = Kind::kNone;
  bool has_node_ = false;
};

/// The names of a class, the arguments it was made with and the state given to it.
struct PythonValue::Object {
  std::string module = {}, name = {};
  PythonValue args = {};   ///< tuple, or none
  PythonValue state = {};  ///< none if no state was given
  Items items = {};        ///< appended to it as to a list
  Pairs pairs = {};        ///< set in it as in a dict
  std::string qualified() const { return module + "." + name; }
  /// Returns an attribute of a state that is a dict (or a tuple of dicts, as with slots), or null.
  const PythonValue* attribute(std::string_view key) const noexcept;
};

}  // namespace hasten::files
