// Sizes in bytes: of elements, from text ("20GiB") and to text ("1.29 KB").
//
// The rules are Accelerate's, so that its device maps and tables come out equal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

namespace hasten::plan {

/// A number of bytes, or text such as "20GiB".
using Bytes = std::variant<int64_t, std::string>;

/// Returns the bytes of one element of PyTorch's dtype ("float32", "torch.float32"): bool 1/8, int2 1/4, int4 1/2, else
/// bits / 8. A bool counts an eighth, as Accelerate counts it.
/// Throws: UsageError for a name without a size.
double dtype_byte_size(std::string_view dtype);
/// Returns true for floating-point names. Integers and bool keep their own size whatever dtype a model is planned in.
bool is_floating_dtype(std::string_view dtype);

/// Returns the number of bytes. Text: GiB, MiB, KiB are powers of 1024, in any case. GB, MB, KB are powers of 1000,
/// divided by 8 if the last letter is "b". Fractions are truncated.
/// Throws: UsageError for other text, a negative or a not-finite number.
int64_t parse_bytes(const Bytes& size);

/// Returns "880 bytes", "1.29 KB", in units of 1024, with at most two decimals.
std::string convert_bytes(int64_t size);
/// Does the same for a size that arithmetic has made a fraction: "440.0 bytes".
std::string convert_bytes(double size);

}  // namespace hasten::plan
