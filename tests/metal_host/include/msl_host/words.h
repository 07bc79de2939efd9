// Words of the language, and constructors of vectors: last, because they are macros.
#pragma once
#pragma clang system_header
#define device MSLH_DEV
#define constant MSLH_CST
#define threadgroup MSLH_TG
#define thread
#define kernel
#define MSLH_MK(T, n) ::mslh::mk<::metal::vec<T, n>>
#define float2(...) MSLH_MK(float, 2)(__VA_ARGS__)
#define float3(...) MSLH_MK(float, 3)(__VA_ARGS__)
#define float4(...) MSLH_MK(float, 4)(__VA_ARGS__)
#define half2(...) MSLH_MK(half, 2)(__VA_ARGS__)
#define half3(...) MSLH_MK(half, 3)(__VA_ARGS__)
#define half4(...) MSLH_MK(half, 4)(__VA_ARGS__)
#define bfloat2(...) MSLH_MK(bfloat, 2)(__VA_ARGS__)
#define bfloat3(...) MSLH_MK(bfloat, 3)(__VA_ARGS__)
#define bfloat4(...) MSLH_MK(bfloat, 4)(__VA_ARGS__)
#define char2(...) MSLH_MK(char, 2)(__VA_ARGS__)
#define char3(...) MSLH_MK(char, 3)(__VA_ARGS__)
#define char4(...) MSLH_MK(char, 4)(__VA_ARGS__)
#define uchar2(...) MSLH_MK(uchar, 2)(__VA_ARGS__)
#define uchar3(...) MSLH_MK(uchar, 3)(__VA_ARGS__)
#define uchar4(...) MSLH_MK(uchar, 4)(__VA_ARGS__)
#define short2(...) MSLH_MK(short, 2)(__VA_ARGS__)
#define short3(...) MSLH_MK(short, 3)(__VA_ARGS__)
#define short4(...) MSLH_MK(short, 4)(__VA_ARGS__)
#define ushort2(...) MSLH_MK(ushort, 2)(__VA_ARGS__)
#define ushort3(...) MSLH_MK(ushort, 3)(__VA_ARGS__)
#define ushort4(...) MSLH_MK(ushort, 4)(__VA_ARGS__)
#define int2(...) MSLH_MK(int, 2)(__VA_ARGS__)
#define int3(...) MSLH_MK(int, 3)(__VA_ARGS__)
#define int4(...) MSLH_MK(int, 4)(__VA_ARGS__)
#define uint2(...) MSLH_MK(uint, 2)(__VA_ARGS__)
#define uint3(...) MSLH_MK(uint, 3)(__VA_ARGS__)
#define uint4(...) MSLH_MK(uint, 4)(__VA_ARGS__)
#define long2(...) MSLH_MK(long, 2)(__VA_ARGS__)
#define long3(...) MSLH_MK(long, 3)(__VA_ARGS__)
#define long4(...) MSLH_MK(long, 4)(__VA_ARGS__)
#define ulong2(...) MSLH_MK(ulong, 2)(__VA_ARGS__)
#define ulong3(...) MSLH_MK(ulong, 3)(__VA_ARGS__)
#define ulong4(...) MSLH_MK(ulong, 4)(__VA_ARGS__)
