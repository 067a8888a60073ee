// Opcodes of protocol 2; see pickle_writer.h and docs/formats/python.md.
#include "files/python/pickle_writer.h"

#include <bit>
#include <unordered_map>

#include "files/base/origin.h"
#include "files/python/python_text.h"

namespace hasten::files {
namespace {

using Kind = PythonValue::Kind;
constexpr int kMaxDepth = 500;

class PickleWriter {
 public:
  WrittenPickle finish(const PythonValue& value) {
    out_ = "\x80\x02";
    put(value, 0);
    out_ += '.';
    return {std::move(out_), std::move(storages_)};
  }

 private:
  void little(uint64_t value, size_t size) {
    for (size_t i = 0; i < size; ++i) out_ += static_cast<char>(value >> (8 * i));
  }
  void global(std::string_view module, std::string_view name) {
    out_ += 'c';
    out_ += module;
    out_ += '\n';
    out_ += name;
    out_ += '\n';
  }
  void string(std::string_view words) {
    if (words.size() > 0xffffffff)
      throw UsageError(kOrigin, "a text of ", words.size(), " bytes is too long for a pickle of protocol 2.");
    out_ += 'X';
    little(words.size(), 4);
    out_ += words;
  }
  void integer(const PythonValue& value) {
    if (value.is_big_int()) {
      const std::string bytes = bytes_of_int(value.int_text());
      out_ += bytes.size() < 256 ? '\x8a' : '\x8b';
      little(bytes.size(), bytes.size() < 256 ? 1 : 4);
      out_ += bytes;
    } else {
      integer(value.as_int());
    }
  }
  void integer(int64_t value) {
    if (value >= 0 && value < 256) {
      out_ += 'K';
      little(static_cast<uint64_t>(value), 1);
    } else if (value >= 0 && value < 65536) {
      out_ += 'M';
      little(static_cast<uint64_t>(value), 2);
    } else if (value == static_cast<int32_t>(value)) {
      out_ += 'J';
      little(static_cast<uint64_t>(value), 4);
    } else {
      const std::string bytes = bytes_of_int(std::to_string(value));
      out_ += '\x8a';
      little(bytes.size(), 1);
      out_ += bytes;
    }
  }
  void real(double value) {
    out_ += 'G';
    const auto bits = std::bit_cast<uint64_t>(value);
    for (int shift = 56; shift >= 0; shift -= 8) out_ += static_cast<char>(bits >> shift);
  }
  void boolean(bool value) { out_ += value ? '\x88' : '\x89'; }

  void tuple_of(const PythonValue::Items& items, int depth) {
    out_ += '(';
    for (const PythonValue& item : items) put(item, depth + 1);
    out_ += 't';
  }
  void tuple_of(const std::vector<int64_t>& numbers) {
    out_ += '(';
    for (const int64_t number : numbers) integer(number);
    out_ += 't';
  }
  void list_of(const PythonValue::Items& items, int depth) {
    out_ += ']';
    if (items.empty()) return;
    out_ += '(';
    for (const PythonValue& item : items) put(item, depth + 1);
    out_ += 'e';
  }
  void pairs_of(const PythonValue::Pairs& pairs, int depth) {
    if (pairs.empty()) return;
    out_ += '(';
    for (const auto& [key, value] : pairs) {
      put(key, depth + 1);
      put(value, depth + 1);
    }
    out_ += 'u';
  }
  void call_with_latin1(std::string_view module, std::string_view name, const std::string& bytes) {
    global(module, name);
    string(utf8_of_latin1(bytes));
    string("latin1");
    out_ += "\x86R";
  }

  void mapping(const PythonValue& value, int depth) {
    if (value.kind() == Kind::kCounter) {
      global("collections", "Counter");
      out_ += '}';
      pairs_of(value.as_pairs(), depth);
      out_ += "\x85R";
      return;
    }
    if (value.kind() == Kind::kOrderedDict) {
      global("collections", "OrderedDict");
      out_ += ")R";
    } else {
      out_ += '}';
    }
    pairs_of(value.as_pairs(), depth);
    if (value.kind() == Kind::kOrderedDict && value.attributes() != nullptr) {
      put(*value.attributes(), depth + 1);
      out_ += 'b';
    }
  }

  void sequence(const PythonValue& value, int depth) {
    switch (value.kind()) {
      case Kind::kTuple:
        tuple_of(value.as_items(), depth);
        return;
      case Kind::kList:
        list_of(value.as_items(), depth);
        return;
      case Kind::kSize:
        global("torch", "Size");
        tuple_of(value.as_items(), depth);
        break;
      default:
        global("__builtin__", value.kind() == Kind::kSet ? "set" : "frozenset");
        list_of(value.as_items(), depth);
    }
    out_ += "\x85R";
  }

  void persistent_id(const std::shared_ptr<PythonStorage>& storage, Dtype dtype, bool untyped) {
    const auto [at, fresh] = keys_.emplace(storage.get(), storages_.size());
    if (fresh) storages_.push_back(storage);
    out_ += '(';
    string("storage");
    global(untyped ? "torch.storage" : "torch", untyped ? "UntypedStorage" : storage_class(dtype));
    string(std::to_string(at->second));
    string("cpu");
    integer(untyped ? storage->bytes : storage->bytes / static_cast<int64_t>(element_bytes(dtype)));
    out_ += "tQ";
  }

  void strided(const PythonTensor& tensor) {
    const bool untyped = storage_class(tensor.dtype).empty();
    global("torch._utils", untyped ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2");
    out_ += '(';
    persistent_id(tensor.storage, tensor.dtype, untyped);
    integer(tensor.offset);
    tuple_of(tensor.shape);
    tuple_of(tensor.stride);
    boolean(tensor.requires_grad && !tensor.parameter);
    global("collections", "OrderedDict");
    out_ += ")R";
    if (untyped) global("torch", torch_name(tensor.dtype));
    if (tensor.conj || tensor.neg) {
      out_ += "}(";
      for (const auto& [name, set] : {std::pair("conj", tensor.conj), std::pair("neg", tensor.neg)}) {
        if (!set) continue;
        string(name);
        boolean(true);
      }
      out_ += 'u';
    }
    out_ += "tR";
  }

  void meta(const PythonTensor& tensor) {
    global("torch._utils", "_rebuild_meta_tensor_no_storage");
    out_ += '(';
    global("torch", torch_name(tensor.dtype));
    tuple_of(tensor.shape);
    tuple_of(tensor.stride);
    boolean(tensor.requires_grad);
    out_ += "tR";
  }

  void tensor(const PythonTensor& tensor) {
    if (tensor.is_sparse() || !tensor.unreadable.empty() || tensor.storage == nullptr) {
      throw UsageError(kOrigin, "a tensor cannot be written to a torch.save file, since ",
                       tensor.unreadable.empty() ? "it is sparse" : tensor.unreadable, ". Make it dense first.");
    }
    if (tensor.parameter) {
      global("torch._utils", "_rebuild_parameter");
      out_ += '(';
    }
    tensor.is_meta() ? meta(tensor) : strided(tensor);
    if (tensor.parameter) {
      boolean(tensor.requires_grad);
      global("collections", "OrderedDict");
      out_ += ")RtR";
    }
  }

  void put(const PythonValue& value, int depth) {
    if (depth > kMaxDepth)
      throw UsageError(kOrigin, "a value nests more than ", kMaxDepth, " levels deep, or contains itself.");
    if (value.is_sequence()) return sequence(value, depth);
    if (value.is_mapping()) return mapping(value, depth);
    switch (value.kind()) {
      case Kind::kNone:
        out_ += 'N';
        return;
      case Kind::kBool:
        return boolean(value.as_bool());
      case Kind::kInt:
        return integer(value);
      case Kind::kFloat:
        return real(value.as_double());
      case Kind::kString:
        return string(value.as_string());
      case Kind::kTensor:
        return tensor(value.as_tensor());
      case Kind::kBytes:
        return call_with_latin1("_codecs", "encode", value.as_bytes());
      case Kind::kByteArray:
        return call_with_latin1("__builtin__", "bytearray", value.as_bytes());
      case Kind::kDtype:
        return global("torch", torch_name(value.as_dtype()));
      case Kind::kDevice:
        global("torch", "device");
        string(value.as_string());
        out_ += "\x85R";
        return;
      case Kind::kComplex:
        global("__builtin__", "complex");
        real(value.as_complex().first);
        real(value.as_complex().second);
        out_ += "\x86R";
        return;
      default:
        throw UsageError(kOrigin, "a ", value.type_name(),
                         " cannot be written to a torch.save file: Python would need its code to load it. "
                         "Write its parts as tensors, numbers, texts, lists and dicts.");
    }
  }

  std::string out_;
  std::vector<std::shared_ptr<PythonStorage>> storages_;
  std::unordered_map<const PythonStorage*, size_t> keys_;
};

}  // namespace

WrittenPickle write_pickle(const PythonValue& value) {
  return PickleWriter().finish(value);
}

}  // namespace hasten::files
