#include "model/import/gguf/types.h"

#include <array>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "model/float_bits.h"

namespace edgellm::model_io::gguf {
namespace {

constexpr int kBlock256 = 256;  // ggml's QK_K

constexpr std::array<TypeTraits, 18> kTypes = {{
    {Type::kF32, 0, "F32", 1, 4},
    {Type::kF16, 1, "F16", 1, 2},
    {Type::kBf16, 30, "BF16", 1, 2},
    {Type::kQ4_0, 2, "Q4_0", 32, 18},
    {Type::kQ8_0, 8, "Q8_0", 32, 34},
    {Type::kQ4K, 12, "Q4_K", kBlock256, 144},
    {Type::kQ6K, 14, "Q6_K", kBlock256, 210},
    {Type::kTq1_0, 34, "TQ1_0", kBlock256, 54},
    {Type::kTq2_0, 35, "TQ2_0", kBlock256, 66},
    {Type::kI2sWindow128, 36, "I2_S", 128, 32, 0, 32, 1, false},
    {Type::kI2sWindow64, 36, "I2_S", 64, 16, 0, 32, 1, false},
    {Type::kI2sFourRows, 36, "I2_S", 4, 1, 0, 32, 4, false},
    {Type::kQ2_0Of64, 42, "Q2_0", 64, 18},
    {Type::kQ2_0Of128, 42, "Q2_0", 128, 34},
    {Type::kPtq1_0, 143, "PTQ1_0", 128, 28},
    {Type::kIq1Bn, 134, "IQ1_BN", 64, 13, 2},
    {Type::kIq2Bn, 135, "IQ2_BN", 64, 16, 4},
    {Type::kIq2BnR4, 335, "IQ2_BN_R4", 64, 16, 4, 0, 4},
}};

// PQ2_0 is the later number of the layout that Q2_0 of 128 has.
constexpr uint32_t kPq2_0Number = 142;

struct OtherType {
  uint32_t number;
  const char* name;
};
constexpr std::array kOtherTypes = {OtherType{3, "Q4_1"},     OtherType{6, "Q5_0"},
                                    OtherType{7, "Q5_1"},     OtherType{9, "Q8_1"},
                                    OtherType{10, "Q2_K"},    OtherType{11, "Q3_K"},
                                    OtherType{13, "Q5_K"},    OtherType{15, "Q8_K"},
                                    OtherType{16, "IQ2_XXS"}, OtherType{17, "IQ2_XS"},
                                    OtherType{18, "IQ3_XXS"}, OtherType{19, "IQ1_S"},
                                    OtherType{20, "IQ4_NL"},  OtherType{21, "IQ3_S"},
                                    OtherType{22, "IQ2_S"},   OtherType{23, "IQ4_XS"},
                                    OtherType{24, "I8"},      OtherType{25, "I16"},
                                    OtherType{26, "I32"},     OtherType{27, "I64"},
                                    OtherType{28, "F64"},     OtherType{29, "IQ1_M"},
                                    OtherType{38, "TL1"},     OtherType{39, "TL2 (or MXFP4)"},
                                    OtherType{40, "NVFP4"},   OtherType{41, "Q1_0"},
                                    OtherType{43, "STQ1_0"},  OtherType{kPq2_0Number, "PQ2_0"}};

float read_f16(const uint8_t* from) {
  uint16_t bits = 0;
  std::memcpy(&bits, from, 2);
  return f16_to_float(bits);
}

float read_f32(const uint8_t* from) {
  float value = 0;
  std::memcpy(&value, from, 4);
  return value;
}

// ---- numbers ------------------------------------------------------------------------------------

// f16 d, then 16 bytes: value i in the low half of byte i, value 16 + i in the high half.
void dequantise_q4_0(const uint8_t* block, float* values) {
  const float d = read_f16(block);
  for (int i = 0; i < 16; ++i) {
    values[i] = d * static_cast<float>((block[2 + i] & 15) - 8);
    values[16 + i] = d * static_cast<float>((block[2 + i] >> 4) - 8);
  }
}

// f16 d, then 32 int8.
void dequantise_q8_0(const uint8_t* block, float* values) {
  const float d = read_f16(block);
  for (int i = 0; i < 32; ++i)
    values[i] = d * static_cast<float>(static_cast<int8_t>(block[2 + i]));
}

// f16 d and dmin, 12 bytes with eight pairs of 6-bit (scale, minimum), 128 bytes of halves: each 32
// bytes hold 32 values in their low halves and the next 32 in their high ones.
void dequantise_q4_k(const uint8_t* block, float* values) {
  const float d = read_f16(block);
  const float d_min = read_f16(block + 2);
  const uint8_t* packed = block + 4;
  for (int part = 0; part < 8; ++part) {
    unsigned scale = packed[part] & 63u;
    unsigned minimum = packed[part + 4] & 63u;
    if (part >= 4) {
      scale = (packed[part + 4] & 15u) | ((packed[part - 4] >> 6) << 4);
      minimum = (packed[part + 4] >> 4) | ((packed[part] >> 6) << 4);
    }
    const float factor = d * static_cast<float>(scale);
    const float offset = d_min * static_cast<float>(minimum);
    const uint8_t* halves = block + 16 + 32 * (part / 2);
    for (int i = 0; i < 32; ++i) {
      const int code = part % 2 == 0 ? halves[i] & 15 : halves[i] >> 4;
      const float product = factor * static_cast<float>(code);
      values[32 * part + i] = product - offset;
    }
  }
}

// 128 bytes with the low four bits, 64 with the high two, 16 int8 scales, f16 d.
void dequantise_q6_k(const uint8_t* block, float* values) {
  const uint8_t* low = block;
  const uint8_t* high = block + 128;
  const uint8_t* scales = block + 192;
  const float d = read_f16(block + 208);
  for (int i = 0; i < kBlock256; ++i) {
    const int half = i / 128;          // 64 bytes of low bits, 32 of high ones
    const int quarter = i % 128 / 32;  // which bits of a byte
    const int at = i % 32;
    const int low_byte = low[64 * half + 32 * (quarter % 2) + at];
    const int low_bits = quarter < 2 ? low_byte & 15 : low_byte >> 4;
    const int high_bits = (high[32 * half + at] >> (2 * quarter)) & 3;
    const int code = (low_bits | (high_bits << 4)) - 32;
    const float factor = d * static_cast<float>(static_cast<int8_t>(scales[i / 16]));
    values[i] = factor * static_cast<float>(code);
  }
}

// ---- ternary ------------------------------------------------------------------------------------

// Five ternary digits in a byte: the number d0 d1 d2 d3 d4 in base 3, times 256 / 243 rounded up,
// so that digit n is the integer part of 3 * frac(byte * 3^n / 256).
int8_t trit(uint8_t byte, int digit) {
  constexpr uint8_t kPowers[] = {1, 3, 9, 27, 81};
  const auto shifted = static_cast<uint8_t>(byte * kPowers[digit]);
  return static_cast<int8_t>(((shifted * 3u) >> 8) - 1);
}

// Two bits with 0, 1, 2 for -1, 0, +1.
int8_t pair_code(unsigned byte, int shift) {
  return static_cast<int8_t>(static_cast<int>((byte >> shift) & 3u) - 1);
}

// 48 bytes of five digits (32 bytes, then 16), 4 of four digits, f16 d.
void unpack_tq1_0(const uint8_t* block, int8_t* codes, float& scale) {
  for (int i = 0; i < 160; ++i) codes[i] = trit(block[i % 32], i / 32);
  for (int i = 0; i < 80; ++i) codes[160 + i] = trit(block[32 + i % 16], i / 16);
  for (int i = 0; i < 16; ++i) codes[240 + i] = trit(block[48 + i % 4], i / 4);
  scale = read_f16(block + 52);
}

// Two times 32 bytes for 128 values each, then f16 d.
void unpack_tq2_0(const uint8_t* block, int8_t* codes, float& scale) {
  for (int i = 0; i < kBlock256; ++i) {
    codes[i] = pair_code(block[32 * (i / 128) + i % 32], 2 * (i % 128 / 32));
  }
  scale = read_f16(block + 64);
}

// 24 bytes of five digits (16, then 8), 2 of four, f16 d.
void unpack_ptq1_0(const uint8_t* block, int8_t* codes, float& scale) {
  for (int i = 0; i < 80; ++i) codes[i] = trit(block[i % 16], i / 16);
  for (int i = 0; i < 40; ++i) codes[80 + i] = trit(block[16 + i % 8], i / 8);
  for (int i = 0; i < 8; ++i) codes[120 + i] = trit(block[24 + i % 2], i / 2);
  scale = read_f16(block + 26);
}

// f16 d, then four values a byte from the low bits.
void unpack_q2_0(const uint8_t* block, int n, int8_t* codes, float& scale) {
  for (int i = 0; i < n; ++i) codes[i] = pair_code(block[2 + i / 4], 2 * (i % 4));
  scale = read_f16(block);
}

// A window of four times `bytes` values: value j in byte j % bytes, from the high bits.
void unpack_i2s_window(const uint8_t* window, int bytes, int8_t* codes) {
  for (int i = 0; i < 4 * bytes; ++i) codes[i] = pair_code(window[i % bytes], 6 - 2 * (i / bytes));
}

// 64 values: of each 16, fifteen in three bytes, whose last digit comes first, and the sixteenth in
// a digit of the last byte.
void unpack_iq1_bn(const uint8_t* block, int8_t* codes) {
  for (int i = 0; i < 64; ++i) {
    const int of_16 = i % 16;
    codes[i] = of_16 == 15 ? trit(block[12], 4 - i / 16)
                           : trit(block[3 * (i / 16) + of_16 / 5], 4 - of_16 % 5);
  }
}

// 64 values in 16 bytes.
void unpack_iq2_bn(const uint8_t* block, int8_t* codes) {
  for (int i = 0; i < 64; ++i) codes[i] = pair_code(block[i % 16], 2 * (i / 16));
}

void unpack_block_rows(const TypeTraits& type, const uint8_t* data, int64_t rows, int64_t cols,
                       UnpackedRows& result) {
  const int64_t n_blocks = rows * cols / type.block;
  for (int64_t i = 0; i < n_blocks; ++i) {
    const uint8_t* block = data + i * type.block_bytes;
    int8_t* codes = result.codes.data() + i * type.block;
    float& scale = result.scales[static_cast<size_t>(i)];
    if (type.type == Type::kTq1_0) {
      unpack_tq1_0(block, codes, scale);
    } else if (type.type == Type::kTq2_0) {
      unpack_tq2_0(block, codes, scale);
    } else if (type.type == Type::kPtq1_0) {
      unpack_ptq1_0(block, codes, scale);
    } else {
      unpack_q2_0(block, type.block, codes, scale);
    }
  }
}

// Four rows a byte, the first in the high bits.
void unpack_i2s_four_rows(const uint8_t* data, int64_t rows, int64_t cols, int8_t* codes) {
  for (int64_t row = 0; row < rows; ++row) {
    const uint8_t* bytes = data + row / 4 * cols;
    for (int64_t col = 0; col < cols; ++col) {
      codes[row * cols + col] = pair_code(bytes[col], 6 - 2 * static_cast<int>(row % 4));
    }
  }
}

void unpack_i2s(Type type, const uint8_t* data, int64_t rows, int64_t cols, UnpackedRows& result) {
  if (type == Type::kI2sFourRows) {
    unpack_i2s_four_rows(data, rows, cols, result.codes.data());
    return;
  }
  const int bytes = type == Type::kI2sWindow128 ? 32 : 16;
  for (int64_t i = 0; i < rows * cols / (4 * bytes); ++i) {
    unpack_i2s_window(data + i * bytes, bytes, result.codes.data() + i * 4 * bytes);
  }
}

void unpack_bn_rows(const TypeTraits& type, const uint8_t* data, int64_t rows, int64_t cols,
                    UnpackedRows& result) {
  const int64_t row_bytes = type.row_header_bytes + cols / 64 * type.block_bytes;
  for (int64_t row = 0; row < rows; ++row) {
    const uint8_t* from = data + row * row_bytes;
    const bool wide = type.type == Type::kIq2Bn;
    result.scales[static_cast<size_t>(row)] = wide ? read_f32(from) : read_f16(from);
    for (int64_t i = 0; i < cols / 64; ++i) {
      const uint8_t* block = from + type.row_header_bytes + i * type.block_bytes;
      int8_t* codes = result.codes.data() + row * cols + 64 * i;
      if (wide) {
        unpack_iq2_bn(block, codes);
      } else {
        unpack_iq1_bn(block, codes);
      }
    }
  }
}

// Four rows: four f32 scales; then 64 bytes for 64 columns: column 16 l + 4 s + i of row k in bits
// 2s of byte 16 l + 4 k + i.
void unpack_iq2_bn_r4(const uint8_t* data, int64_t rows, int64_t cols, UnpackedRows& result) {
  const int64_t group_bytes = 16 + cols;
  for (int64_t row = 0; row < rows; ++row) {
    const uint8_t* group = data + row / 4 * group_bytes;
    const int64_t k = row % 4;
    result.scales[static_cast<size_t>(row)] = read_f32(group + 4 * k);
    for (int64_t col = 0; col < cols; ++col) {
      const int64_t in_16 = col % 16;
      const uint8_t byte = group[16 + col / 16 * 16 + 4 * k + in_16 % 4];
      result.codes[static_cast<size_t>(row * cols + col)] =
          pair_code(byte, 2 * static_cast<int>(in_16 / 4));
    }
  }
}

}  // namespace

const TypeTraits& traits(Type type) {
  const TypeTraits& found = kTypes[static_cast<size_t>(type)];
  require(found.type == type, "the table is in the order of the types");
  return found;
}

bool is_ternary(Type type) { return type >= Type::kTq1_0; }

std::vector<Type> types_of(uint32_t number) {
  if (number == kPq2_0Number) return {Type::kQ2_0Of128};
  std::vector<Type> found;
  for (const TypeTraits& type : kTypes) {
    if (type.number == number) found.push_back(type.type);
  }
  return found;
}

std::string type_name(uint32_t number) {
  for (const OtherType& type : kOtherTypes) {
    if (type.number == number) return type.name;
  }
  const std::vector<Type> types = types_of(number);
  return types.empty() ? "type " + std::to_string(number) : traits(types.front()).name;
}

std::string type_advice(uint32_t number) {
  switch (number) {
    case 38:
    case 39:
      return "; its tiles depend on the program that wrote it and are not in the file: take the "
             "I2_S, TQ1_0 or TQ2_0 file of the model, or its Hugging Face folder";
    case 43:
      return "; take the Hugging Face folder or a TQ1_0, TQ2_0 or Q2_0 file of the model";
    default:
      return "; ternary matrices may be TQ1_0, TQ2_0, I2_S, Q2_0, PQ2_0, PTQ1_0, IQ1_BN, IQ2_BN, "
             "IQ2_BN_R4, F16, BF16 or F32, all else F32, F16, BF16, Q8_0, Q4_0, Q4_K or Q6_K";
  }
}

std::optional<uint64_t> tensor_bytes(Type type, int64_t rows, int64_t cols) {
  const TypeTraits& t = traits(type);
  const int64_t n = rows * cols;  // no overflow: the reader checked it
  const bool fits = t.blocks_in_row ? cols % t.block == 0 : n % t.block == 0;
  if (!fits || rows % t.rows_together != 0) return std::nullopt;
  // A block has no more than four bytes for a value, and n < 2^63.
  const auto n_blocks = static_cast<uint64_t>(n / t.block);
  if (n_blocks > UINT64_MAX / 2 / static_cast<uint64_t>(t.block_bytes)) return std::nullopt;
  return n_blocks * static_cast<uint64_t>(t.block_bytes) +
         static_cast<uint64_t>(rows) * static_cast<uint64_t>(t.row_header_bytes) +
         static_cast<uint64_t>(t.tail_bytes);
}

int64_t row_group(Type type, int64_t cols) {
  const TypeTraits& t = traits(type);
  if (t.blocks_in_row || t.rows_together > 1) return t.rows_together;
  return t.block / std::gcd(cols, int64_t{t.block});
}

void dequantise(Type type, const uint8_t* data, size_t n, float* values) {
  const TypeTraits& t = traits(type);
  const auto block = static_cast<size_t>(t.block);
  const auto block_bytes = static_cast<size_t>(t.block_bytes);
  for (size_t i = 0; i < n / block; ++i) {
    const uint8_t* from = data + i * block_bytes;
    float* to = values + i * block;
    switch (type) {
      case Type::kF32:
        *to = read_f32(from);
        break;
      case Type::kF16:
        *to = read_f16(from);
        break;
      case Type::kBf16: {
        uint16_t bits = 0;
        std::memcpy(&bits, from, 2);
        *to = bf16_to_float(bits);
        break;
      }
      case Type::kQ4_0:
        dequantise_q4_0(from, to);
        break;
      case Type::kQ8_0:
        dequantise_q8_0(from, to);
        break;
      case Type::kQ4K:
        dequantise_q4_k(from, to);
        break;
      case Type::kQ6K:
        dequantise_q6_k(from, to);
        break;
      default:
        require(false, "a type that holds numbers");
    }
  }
}

int64_t scale_block(Type type, int64_t cols) {
  const TypeTraits& t = traits(type);
  return t.blocks_in_row && t.row_header_bytes == 0 ? t.block : cols;
}

UnpackedRows unpack(Type type, const uint8_t* data, int64_t rows, int64_t cols,
                    float tensor_scale) {
  require(is_ternary(type) && rows % row_group(type, cols) == 0, "whole groups of ternary rows");
  const TypeTraits& t = traits(type);
  UnpackedRows result;
  result.codes.resize(static_cast<size_t>(rows * cols));
  result.scales.assign(static_cast<size_t>(rows * (cols / scale_block(type, cols))), tensor_scale);
  if (!t.blocks_in_row) {
    unpack_i2s(type, data, rows, cols, result);
  } else if (type == Type::kIq2BnR4) {
    unpack_iq2_bn_r4(data, rows, cols, result);
  } else if (t.row_header_bytes > 0) {
    unpack_bn_rows(t, data, rows, cols, result);
  } else {
    unpack_block_rows(t, data, rows, cols, result);
  }
  return result;
}

}  // namespace edgellm::model_io::gguf
