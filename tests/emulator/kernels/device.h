// The few HIP definitions that the test kernels need, without ROCm's headers.
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define THREADS(n) __attribute__((amdgpu_flat_work_group_size(n, n), amdgpu_waves_per_eu(2, 2)))
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;
typedef __attribute__((ext_vector_type(2))) u32 u32x2;
typedef __attribute__((ext_vector_type(4))) u32 u32x4;
typedef __attribute__((ext_vector_type(4))) int i32x4;
typedef __attribute__((ext_vector_type(4))) short s16x4;
typedef __attribute__((ext_vector_type(4))) float f32x4;
typedef __attribute__((ext_vector_type(16))) float f32x16;
static __device__ inline u32 lane_id() { return __builtin_amdgcn_workitem_id_x() & 63; }
static __device__ inline u32 wave_id() { return __builtin_amdgcn_readfirstlane(__builtin_amdgcn_workitem_id_x() >> 6); }
static __device__ inline void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
